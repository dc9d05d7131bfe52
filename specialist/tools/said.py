"""What a model has said: text, and parts of calls."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from specialist.tools.tool import CallPart


class Said(NamedTuple):
    text: str = ""
    calls: tuple[CallPart, ...] = ()


class Saying:
    """Said while it is put together."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._parts: list[CallPart] = []

    def text(self, text: str) -> None:
        self._texts.append(text)

    def part(self, part: CallPart) -> None:
        self._parts.append(part)

    def done(self) -> Said:
        return Said("".join(self._texts), joined(self._parts))


def joined(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Neighbouring parts of one call as one."""
    groups: list[list[CallPart]] = []
    for part in parts:
        if groups and groups[-1][0].index == part.index:
            groups[-1].append(part)
        else:
            groups.append([part])
    return tuple(replace(group[0], arguments="".join(part.arguments for part in group)) for group in groups)
