"""Lines of a screen: what they say, and how loudly. Nothing that came from elsewhere reaches the terminal raw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from octet.printable import cut, padded, printable, width

Tone = Literal["plain", "dim", "bold", "good", "warn", "bad"]
_CODES: dict[Tone, str] = {
    "plain": "",
    "dim": "\x1b[2m",
    "bold": "\x1b[1m",
    "good": "\x1b[32m",
    "warn": "\x1b[33m",
    "bad": "\x1b[1;31m",
}
_PLAIN = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Span:
    text: str
    tone: Tone = "plain"

    @classmethod
    def of(cls, text: str, tone: Tone = "plain") -> "Span":
        """Of text from anywhere."""
        return cls(printable(text), tone)


Line = tuple[Span, ...]


def line(text: str, tone: Tone = "plain") -> Line:
    return (Span.of(text, tone),)


def fitted(spans: Line, columns: int) -> Line:
    """Not wider."""
    kept: list[Span] = []
    room = columns
    for span in spans:
        if room <= 0:
            break
        text = cut(span.text, room)
        kept.append(Span(text, span.tone))
        room -= width(text)
    return tuple(kept)


def cell(span: Span, columns: int, *, right: bool) -> Span:
    return Span(padded(span.text, columns, right=right), span.tone)


def painted(spans: Line, *, colour: bool) -> str:
    """As the terminal takes it. Cleaned once more: this is the only way to it."""
    if not colour:
        return "".join(printable(span.text) for span in spans).rstrip()
    shown = [_toned(span) for span in spans]
    return "".join(shown)


def _toned(span: Span) -> str:
    code = _CODES[span.tone]
    text = printable(span.text)
    return f"{code}{text}{_PLAIN}" if code else text


def plain_text(lines: Sequence[Line]) -> str:
    return "\n".join(painted(each, colour=False) for each in lines)
