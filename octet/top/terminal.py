"""A terminal that is taken over, and given back as it was, whatever happens."""

import os
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from octet.top.text import Line, painted

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_TO_LINE_END, _TO_SCREEN_END = "\x1b[K", "\x1b[J"
_USUAL = (80, 24)


class Screen:
    """`with Screen(keys, out, colour=...) as screen: ...`: descriptors of one terminal."""

    def __init__(self, keys: int, out: int, *, colour: bool) -> None:
        self._keys = keys
        self._out = out
        self._colour = colour
        self._before: Any = None
        self._drawn = ""

    def __enter__(self) -> "Screen":
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def take(self) -> None:
        """Keys come as they are pressed, and are not shown; signals stay signals."""
        self._before = termios.tcgetattr(self._keys)
        tty.setcbreak(self._keys)
        self._drawn = ""
        self._write(_ENTER)

    def give_back(self) -> None:
        """Also to a terminal that has gone."""
        with suppress(OSError):
            self._write(_LEAVE)
        if self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._before)
            self._before = None

    def size(self) -> tuple[int, int]:
        """Columns and lines; some terminals do not know theirs."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            return _USUAL
        return columns or _USUAL[0], lines or _USUAL[1]

    def draw(self, lines: Sequence[Line]) -> None:
        """Writes nothing where nothing has changed."""
        rows = (f"\x1b[{number};1H{painted(each, colour=self._colour)}" for number, each in enumerate(lines, 1))
        shown = "".join(f"{row}{_TO_LINE_END}" for row in rows) + _TO_SCREEN_END
        if shown != self._drawn:
            self._write(shown)
            self._drawn = shown

    def forget(self) -> None:
        """What is on it is not known any more."""
        self._drawn = ""

    def _write(self, text: str) -> None:
        left = text.encode(errors="replace")
        while left:
            left = left[os.write(self._out, left) :]
