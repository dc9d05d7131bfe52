"""Where everything stands in the file, and what is wrong there."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeAlias

from octet.config.problem import Problems
from octet.config.tree import bare

Place: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top, such as ("specialists", "sql", "model")."""
_COMPARED = 64


def dotted(place: Place) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{bare(part)}" for part in place)
    return text.removeprefix(".")


def nearest(text: str, known: list[str]) -> str:
    """A hint for whoever mistyped a name."""
    close = get_close_matches(text[:_COMPARED], [name[:_COMPARED] for name in known], n=1)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(bare(name) for name in known)}"


class Sheet:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._lines: dict[Place, int] = {(): 1}
        self._wrong: set[Place] = set()

    @property
    def lines(self) -> Mapping[Place, int]:
        return self._lines

    def stands(self, place: Place, line: int) -> None:
        self._lines[place] = line

    def given(self, *place: str | int) -> bool:
        return place in self._lines

    def line_of(self, place: Place) -> int:
        """Of what is not there: the line of what it would stand in."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def wrong(self, place: Place, message: str, line: int | None = None) -> None:
        """A place that is wrong makes everything around it doubtful: no check judges it again."""
        self._wrong.update(place[:length] for length in range(1, len(place) + 1))
        self._problems.add(self.line_of(place) if line is None else line, f"{dotted(place)} {message}")

    def unknown(self, place: Place, what: str, name: str, known: list[str]) -> None:
        hint = "" if self._problems.full else nearest(name, known)
        self.wrong(place, f"{what}: {hint}")

    def sound(self, *place: str | int) -> bool:
        """Nothing was wrong there, nor within."""
        return place not in self._wrong

    def names(self, section: str) -> list[str]:
        """The keys that stand in a section, right or wrong."""
        return [str(place[1]) for place in self._lines if len(place) == 2 and place[0] == section]
