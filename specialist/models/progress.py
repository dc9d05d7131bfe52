"""Progress of a long task."""

import sys
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""Called with the name of a task, the amount done, and the total, in bytes or tensors."""

WIDTH = 30


def silent(what: str, done: int, total: int) -> None: ...


def bar(stream: TextIO | None = None) -> Progress:
    """Return a function that shows a progress bar on a terminal, or else writes a line as a task starts and ends."""
    stream = stream or sys.stderr
    is_terminal = stream.isatty()
    shown = ("", -1)

    def draw(what: str, done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total if total else 100
        if is_terminal and (what, percent) != shown:
            filled = WIDTH * percent // 100
            stream.write(f"\r{what} [{'#' * filled}{'.' * (WIDTH - filled)}] {percent:3d} %")
            stream.write("\n" if done >= total else "")
        elif not is_terminal:
            stream.write(f"{what} ...\n" if what != shown[0] else "")
            stream.write(f"{what}: done\n" if done >= total else "")
        shown = ("" if done >= total and not is_terminal else what, percent)
        stream.flush()

    return draw
