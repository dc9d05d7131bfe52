"""Text scanned for literal marks, once for all detectors.

Nothing here backtracks. The words of a text are collected once, and a mark is searched for only if all its whole words
are among them. The work is linear in the length of the text, plus a bounded number of checks around each mark.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_WORD = b"abcdefghijklmnopqrstuvwxyz0123456789_"


_FOLDED = bytes(range(0x80)).lower() + bytes(range(0x80, 256))
_WORD_TABLE = bytes(byte if byte >= 0x80 or byte in _WORD else 0x20 for byte in _FOLDED)
"""Maps ASCII words to lower case and other ASCII bytes to spaces. Bytes above 0x7F belong to words."""


def split_words(text: str) -> frozenset[bytes]:
    return frozenset(text.encode("utf-8", "replace").translate(_WORD_TABLE).split())


def _whole_words(piece: str) -> frozenset[bytes]:
    """Return the words that are not cut off at the ends of the piece."""
    words = piece.encode().translate(_WORD_TABLE)
    begun = words[:1].strip()
    ended = words[-1:].strip()
    found = words.split()
    return frozenset(found[1 if begun else 0 : len(found) - 1 if ended else len(found)])


@dataclass(frozen=True, slots=True)
class TextMark:
    text: str
    words: frozenset[bytes] = field(init=False)  # a text that lacks any of these words cannot contain the mark

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _whole_words(self.text))


def text_marks(*pieces: str) -> tuple[TextMark, ...]:
    return tuple(TextMark(piece) for piece in pieces)


MAX_OCCURRENCES = 64  # the most occurrences of one mark that are examined
_MAX_LINE_CHARS = 400
_MAX_MARK_CHARS = 60
_LINE_PREFIX_CHARS = " \t>|"
"""Allowed before the first word of a line: indentation, and quotation marks of mail and Markdown."""


class ScannedText:
    __slots__ = ("text", "words")

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = split_words(text)  # in lower case

    def find(self, mark: TextMark) -> int:
        """Return -1 if the mark is absent."""
        return self.text.find(mark.text) if mark.words <= self.words else -1

    def occurrences(self, mark: TextMark) -> Iterator[int]:
        at = self.find(mark)
        for _ in range(MAX_OCCURRENCES):
            if at < 0:
                return
            yield at
            at = self.text.find(mark.text, at + len(mark.text))

    def line_starts(self, mark: TextMark) -> Iterator[int]:
        """Yield occurrences that start their line, apart from indentation and quotation."""
        return (at for at in self.occurrences(mark) if not self.before(at).strip(_LINE_PREFIX_CHARS))

    def before(self, at: int) -> str:
        start = max(0, at - _MAX_LINE_CHARS)
        return self.text[max(start, self.text.rfind("\n", start, at) + 1) : at]

    def after(self, at: int) -> str:
        end = self.text.find("\n", at, at + _MAX_LINE_CHARS)
        return self.text[at : end if end >= 0 else at + _MAX_LINE_CHARS]

    def match(self, kind: str, mark: str, at: int) -> "RuleMatch | None":
        """Return None if the position is -1."""
        if at < 0:
            return None
        return RuleMatch(kind, " ".join(mark.split())[:_MAX_MARK_CHARS], self.text.count("\n", 0, at) + 1)

    def match_any(self, kind: str, marks: Iterable[TextMark], *, line_start: bool = False) -> "RuleMatch | None":
        """Match the first mark that occurs; with `line_start`, the first that starts a line."""
        for mark in marks:
            at = next(self.line_starts(mark), -1) if line_start else self.find(mark)
            if at >= 0:
                return self.match(kind, mark.text.rstrip("'"), at)  # without an opening quote
        return None


@dataclass(frozen=True, slots=True)
class RuleMatch:
    kind: str  # a name for people, such as "linker output"
    mark: str
    line: int  # the number of the mark's line; the first line is 1

    def __str__(self) -> str:
        return f"{self.kind} ({self.mark}) on line {self.line}"
