"""How far a long task has come."""

import sys
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is: bytes, or tensors."""

WIDTH = 30


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


def bar(stream: TextIO | None = None) -> Progress:
    """On stderr unless told: a bar that fills on a terminal, elsewhere a line when a task begins and when it ends."""
    stream = stream or sys.stderr
    return _moving(stream) if stream.isatty() else _plain(stream)


def _moving(stream: TextIO) -> Progress:
    shown = ("", -1)

    def draw(what: str, done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // total if total else 100
        if (what, percent) == shown:
            return
        shown = (what, percent)
        filled = WIDTH * percent // 100
        stream.write(f"\r{what} [{'#' * filled}{'.' * (WIDTH - filled)}] {percent:3d} %")
        if done >= total:
            stream.write("\n")
        stream.flush()

    return draw


def _plain(stream: TextIO) -> Progress:
    begun = ""

    def say(what: str, done: int, total: int) -> None:
        nonlocal begun
        if what != begun:
            begun = what
            stream.write(f"{what} ...\n")
        if done >= total:
            begun = ""
            stream.write(f"{what}: done\n")
        stream.flush()

    return say
