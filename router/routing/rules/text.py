"""Text scanned for literal marks, once for all detectors.

The words of a text are collected once, and a mark is searched for only if all its whole words are among them. The line
around a mark may have to match patterns. The work is linear in the length of the text, plus a bounded number of checks
around each mark.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from router.routing.normal_text import fold_unicode

MAX_OCCURRENCES = 64  # maximum number of occurrences of a mark that are examined
LINE_START = r"^[ \t>|]*$"
"""Allowed before the first word of a line: indentation, and quote markers of mail and Markdown."""
_MAX_LINE_CHARS = 400
_MAX_MARK_CHARS = 60
_WORD = b"abcdefghijklmnopqrstuvwxyz0123456789_"
_FOLDED = bytes(range(0x80)).lower() + bytes(range(0x80, 256))
_WORD_TABLE = bytes(byte if byte >= 0x80 or byte in _WORD else 0x20 for byte in _FOLDED)
"""Maps ASCII words to lower case and other ASCII bytes to spaces. Bytes above 0x7F belong to words."""


def _whole_words(piece: str) -> frozenset[bytes]:
    """Return the words of the piece, except a word that touches an end: it may be part of a longer word."""
    words = piece.encode().translate(_WORD_TABLE)
    begun = words[:1].strip()
    ended = words[-1:].strip()
    found = words.split()
    return frozenset(found[1 if begun else 0 : len(found) - 1 if ended else len(found)])


@dataclass(frozen=True, slots=True)
class TextMark:
    """A literal text to search for. The patterns must not backtrack far, because callers control the searched text."""

    text: str
    before: str = ""  # a pattern to be found in the same line before the mark
    after: str = ""  # a pattern that the rest of the line must begin with
    least: int = 1  # the minimum number of occurrences
    shown: str = ""  # the text that a match shows; by default the mark with the groups of its patterns
    words: frozenset[bytes] = field(init=False)  # a text that lacks any of these words cannot contain the mark

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _whole_words(self.text))


def text_marks(*pieces: str, before: str = "", after: str = "") -> tuple[TextMark, ...]:
    return tuple(TextMark(piece, before, after) for piece in pieces)


class ScannedText:
    __slots__ = ("text", "words")

    def __init__(self, text: str) -> None:
        self.text = fold_unicode(text)
        self.words = frozenset(self.text.encode("utf-8", "replace").translate(_WORD_TABLE).split())  # in lower case

    def find(self, mark: TextMark) -> int:
        """Return the first position of the mark's text; -1 if it is absent."""
        return self.text.find(mark.text) if mark.words <= self.words else -1

    def occurrences(self, mark: TextMark) -> Iterator[int]:
        """Yield the positions of the mark in lines that match its patterns."""
        at = self.find(mark)
        for _ in range(MAX_OCCURRENCES):
            if at < 0:
                return
            end = at + len(mark.text)
            if re.search(mark.before, self.before(at)) and re.match(mark.after, self.after(end)):
                yield at
            at = self.text.find(mark.text, end)

    def first(self, mark: TextMark) -> int:
        """Return the position of the first occurrence; -1 if there is none."""
        return next(self.occurrences(mark), -1)

    def before(self, at: int) -> str:
        start = max(0, at - _MAX_LINE_CHARS)
        return self.text[max(start, self.text.rfind("\n", start, at) + 1) : at]

    def after(self, at: int) -> str:
        end = self.text.find("\n", at, at + _MAX_LINE_CHARS)
        return self.text[at : end if end >= 0 else at + _MAX_LINE_CHARS]

    def match(self, kind: str, shown: str, at: int) -> "RuleMatch":
        return RuleMatch(kind, " ".join(shown.split())[:_MAX_MARK_CHARS], self.text.count("\n", 0, at) + 1)

    def match_any(self, kind: str, marks: Iterable[TextMark]) -> "RuleMatch | None":
        """Match the first mark that occurs often enough."""
        for mark in marks:
            if self.find(mark) < 0:
                continue
            found = list(islice(self.occurrences(mark), mark.least))
            if len(found) == mark.least:
                return self.match(kind, mark.shown or self._shown(mark, found[0]), found[0])
        return None

    def _shown(self, mark: TextMark, at: int) -> str:
        parts = (re.search(mark.before, self.before(at)), re.match(mark.after, self.after(at + len(mark.text))))
        before, after = ("".join(part.groups()) if part else "" for part in parts)
        return f"{before}{mark.text}{after}".rstrip("': ")


@dataclass(frozen=True, slots=True)
class RuleMatch:
    kind: str  # a readable name, such as "linker output"
    mark: str
    line: int  # the number of the mark's line; the first line is 1

    def __str__(self) -> str:
        return f"{self.kind} ({self.mark}) on line {self.line}"
