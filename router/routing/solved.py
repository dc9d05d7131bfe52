"""Finds where a prompt says that an error is already solved: what precedes is history, not the question."""

import re
from collections.abc import Iterator

_SOLVED = re.compile(
    r"""(?:(?:\b(?:i|we|that|this|it|which|they|he|she|one|error|problem|issue|part|now|already|since|was|is|are|were|been|has|have
      |finally|just)|'s|'ve)\s+(?:(?:have|had|has|already|finally|just|now|been|is|was|got|all|since|eventually|easily|long)\s+){0,3}
      (?:solved|fixed|resolved|sorted(?:\s+out)?|gone|figured\s+(?:it\s+|that\s+|this\s+)?out|got\s+rid\s+of|worked\s+around|behind\s+(?:me|us))\b
    |\b(?:no\s+longer|not\s+any\s*more)\s+(?:an?\s+)?(?:appears?|happens?|occurs?|shows?|problem|issue|there|get|see|have)
    |\b(?:works?|links?|builds?|compiles?|linking|building)\s+(?:fine\s+|well\s+|again\s+)?now\b|\bnow\s+it\s+(?:works|links|builds|compiles)
    |\bturned\s+out\s+(?:to\s+be|that|i)|\b(?:ignore|forget|never\s?mind|disregard)\s+(?:about\s+)?(?:that|this|the|it)\b
    |\b(?:is|was)\s+not\s+(?:what\s+i\s+am\s+asking|my\s+question|the\s+question))""",
    re.VERBOSE,
)  # fmt: skip
_UNSOLVED = re.compile(
    r"\b(?:how|can|could|should|must|to|not|never|cannot|want|wish|until|unless|if|once|when|hope|get|thought|assumed"
    r"|believed|expected|supposed|hoped|whether)\s+(?:\w+\s+){0,2}$"
)
_CONTRADICTED = re.compile(
    r"""(?:(?<=fixed)(?:-\w|\s+(?:sized?|width|length|point|number|amount|position|capacity|rate|precision|stride|seed|interval)\b)
    |\s+only\b
    |[^.!?:;\n)]{0,80}\b(?:still\s+(?:\w+\s+)?(?:crash|fail|happen|occur|get|see|have|hang|persist|appear|there|broken|wrong|not\b|does|do\b
      |doesn|don|the\s+same|leak|segfault|print|give)|(?:came|comes|is|are)\s+back\b))""",
    re.VERBOSE,
)  # fmt: skip
"""What follows the statement and shows that it is none: "fixed-size", "but it still crashes"."""
_LOST = re.compile(r"(?<=gone)\s+(?:after|when|whenever|once|if|as|every|since|on|upon|unless|until)\b")
_TROUBLE = re.compile(r"(?:error|problem|issue|warning|message|crash|leak|bug|failure|trouble)\b[^.!?\n]{0,24}$")
_BEFORE_CHARS, _AFTER_CHARS = 64, 48  # of a hint, that may belong to the statement
_MAX_HINTS = 32  # the last ones are searched
_NEXT_SENTENCE = re.compile(r"[.!?:;\n)]+\s*|\Z")
_CORES = (
    "solved", "fixed", "sorted", "gone", "figured", "got rid", "worked around", "behind", "no longer", "anymore",
    "any more", "now", "turned out", "ignore", "forget", "nevermind", "never mind", "disregard", "not my question",
    "am asking", "the question",
)  # fmt: skip
"""Every statement has one of these; they are searched for first, because that is fast."""


_WINDOW = 4096  # characters at each end of a long text that are searched: people write there


def after_solved(text: str) -> int:
    """Return the position after the last sentence that says that an error is solved; 0 if there is none."""
    if len(text) <= 2 * _WINDOW:
        return _after_solved(text)
    end = _after_solved(text[-_WINDOW:])
    return len(text) - _WINDOW + end if end else _after_solved(text[:_WINDOW])


def _after_solved(text: str) -> int:
    lower = text.lower()
    if len(lower) != len(text):
        return 0
    end = 0
    for start, stop in _spans(lower):
        at = max(start, end)
        while (match := _SOLVED.search(lower, at, stop)) is not None:
            at = match.end()
            if not _is_open(lower, match):
                sentence = _NEXT_SENTENCE.search(lower, at)
                at = end = sentence.end() if sentence is not None else len(text)
    return end


def _is_open(lower: str, match: re.Match[str]) -> bool:
    """Whether what surrounds the statement shows that nothing is solved."""
    before, end = lower[max(0, match.start() - _BEFORE_CHARS) : match.start()], match.end()
    if _UNSOLVED.search(before) or _CONTRADICTED.match(lower, end):
        return True
    return _LOST.match(lower, end) is not None and not _TROUBLE.search(before + match.group())


def _spans(lower: str) -> list[tuple[int, int]]:
    """Return what surrounds the last hints. Spans that overlap are joined, so that no character is searched twice."""
    found = sorted((at, len(core)) for core in _CORES for at in _places(lower, core))
    spans: list[tuple[int, int]] = []
    for at, size in found[-_MAX_HINTS:]:
        start, stop = max(0, at - _BEFORE_CHARS), at + size + _AFTER_CHARS
        if spans and start <= spans[-1][1]:
            start = spans.pop()[0]
        spans.append((start, stop))
    return spans


def _places(text: str, piece: str) -> Iterator[int]:
    at = text.find(piece)
    while at >= 0:
        yield at
        at = text.find(piece, at + len(piece))
