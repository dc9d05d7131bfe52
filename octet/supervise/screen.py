"""What a person sees of the processes: their lines, each with its name before it, and how far they have come."""

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from octet.supervise.outlet import Outlet

_BAR = 24
_ERASE_LINE, _UP = "\x1b[2K", "\x1b[1A"


class Screen(Protocol):
    def log(self, name: str, line: str) -> None:
        """A line that a process wrote."""

    def say(self, text: str) -> None:
        """The supervisor's own words."""

    def progress(self, name: str, what: str, done: int, total: int) -> None: ...

    def ready(self, name: str, pid: int, seconds: float) -> None: ...

    def settle(self) -> None:
        """Everything is ready, or nothing will be: from here on only lines."""


def screen_on(outlet: Outlet, names: Sequence[str]) -> Screen:
    return LiveScreen(outlet, names) if outlet.isatty() else PlainScreen(outlet, names)


def _is_ready(pid: int, seconds: float) -> str:
    return f"ready after {seconds:.1f} s, pid {pid}"


class PlainScreen:
    """A line when something begins, a line when it has ended."""

    def __init__(self, outlet: Outlet, names: Sequence[str]) -> None:
        self._outlet = outlet
        self._width = max(map(len, names), default=0)
        self._begun: dict[str, str] = {}

    def log(self, name: str, line: str) -> None:
        self.say(f"{name:{self._width}} | {line}")

    def say(self, text: str) -> None:
        self._outlet.write(text + "\n")

    def progress(self, name: str, what: str, done: int, total: int) -> None:
        if self._begun.get(name) != what:
            self._begun[name] = what
            self.log(name, f"{what} ...")

    def ready(self, name: str, pid: int, seconds: float) -> None:
        self.log(name, _is_ready(pid, seconds))

    def settle(self) -> None:
        self._begun.clear()


class LiveScreen:
    """A row for each process below the lines that have been written; the rows are drawn anew as things change."""

    def __init__(
        self, outlet: Outlet, names: Sequence[str], size: Callable[[], os.terminal_size] | None = None
    ) -> None:
        self._outlet = outlet
        self._size = size or (lambda: os.get_terminal_size(outlet.fd))
        self._width = max(map(len, names), default=0)
        self._rows = dict.fromkeys(names, "starting")
        self._num_drawn = 0
        self._draw("")

    def log(self, name: str, line: str) -> None:
        self.say(f"{name:{self._width}} | {line}")

    def say(self, text: str) -> None:
        self._draw(text + "\n")

    def progress(self, name: str, what: str, done: int, total: int) -> None:
        if name in self._rows:
            filled = _BAR * done // total if total > 0 else _BAR
            self._rows[name] = f"[{'#' * filled}{'.' * (_BAR - filled)}] {what}"
            self._draw("")

    def ready(self, name: str, pid: int, seconds: float) -> None:
        if name in self._rows:
            self._rows[name] = _is_ready(pid, seconds)
            self._draw("")
        else:
            self.log(name, _is_ready(pid, seconds))

    def settle(self) -> None:
        self._rows.clear()
        self._draw("")

    def _draw(self, above: str) -> None:
        erased = "\r" + _ERASE_LINE + (_UP + _ERASE_LINE) * self._num_drawn
        rows = self._fitting()
        if self._outlet.write(erased + above + "".join(row + "\n" for row in rows)):
            self._num_drawn = len(rows)

    def _fitting(self) -> list[str]:
        """As many rows as the terminal has, none of them wider."""
        columns, lines = self._usable_size()
        rows = [f"{name:{self._width}} | {text}" for name, text in self._rows.items()]
        room = max(1, lines - 2)
        if len(rows) > room:
            rows = [*rows[: room - 1], f"... and {len(rows) - room + 1} more"]
        return [row[: max(1, columns - 1)] for row in rows]

    def _usable_size(self) -> tuple[int, int]:
        """Some terminals do not know theirs, and one that has been closed has none."""
        try:
            columns, lines = self._size()
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24
