"""Everything that is wrong with a configuration, told at once."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MOST_PROBLEMS = 100
_MOST_CHARACTERS = 1000
EMBEDDED = "the embedded default"


class Problem(NamedTuple):
    line: int | None
    """From 1; None where the file as a whole is meant."""
    message: str

    def shown(self, source: Path | None) -> str:
        """As compilers and editors write it."""
        file = EMBEDDED if source is None else str(source)
        return f"{file}: {self.message}" if self.line is None else f"{file}:{self.line}: {self.message}"


class ConfigInvalid(ValueError):
    """The file cannot be used. `problems` is sorted by line and never empty."""

    def __init__(self, problems: Iterable[Problem], source: Path | None) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        self.source = source
        super().__init__("\n".join(problem.shown(source) for problem in self.problems))


class Problems:
    """Collects them; after MOST_PROBLEMS it only counts."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}
        self._more = 0

    @property
    def full(self) -> bool:
        """Nothing more that is added will be told: no need to word it well."""
        return len(self._found) >= MOST_PROBLEMS

    def add(self, line: int | None, message: str) -> None:
        """Whatever the file had in it, a message is one line that any terminal can show."""
        shown = message if len(message) <= _MOST_CHARACTERS else message[:_MOST_CHARACTERS] + "..."
        problem = Problem(line, "".join(one if one.isprintable() else "\ufffd" for one in shown))
        if not self.full:
            self._found[problem] = None
        elif problem not in self._found:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_if_any(self, source: Path | None) -> None:
        """Raises ConfigInvalid."""
        if not self._found:
            return
        last = max(problem.line or 0 for problem in self._found) or None
        more = [Problem(last, f"and {self._more} more problems")] if self._more else []
        raise ConfigInvalid([*self._found, *more], source)
