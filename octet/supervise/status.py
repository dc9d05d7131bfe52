"""What a process tells its supervisor, over a pipe: a JSON object a line."""

import json
import os
import select
from contextlib import suppress
from typing import NamedTuple

VARIABLE = "OCTET_STATUS_FD"
"""Names the pipe to a process that was started by a command."""
_SHORT = 300
"""Characters: the kernel writes 4096 bytes in one piece, and JSON may take twelve for a character."""


class Progress(NamedTuple):
    what: str
    done: int
    total: int


class Ready(NamedTuple):
    text: str


class Alive(NamedTuple):
    pass


News = Progress | Ready | Alive


def parse(line: bytes) -> News | None:
    """None for what is not one of these."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match told:
        case {"progress": [str(what), int(done), int(total)]}:
            return Progress(what, done, total)
        case {"ready": str(text)}:
            return Ready(text)
        case {"alive": True}:
            return Alive()
    return None


class Status:
    """The child's end. Without a supervisor everything is said to nobody."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._shown: tuple[str, int] | None = None
        if fd is not None:
            os.set_blocking(fd, False)

    @classmethod
    def from_environment(cls) -> "Status":
        """For a process that a supervisor may have started by a command; its own children will not inherit the pipe."""
        given = os.environ.pop(VARIABLE, "")
        if not given.isdecimal():
            return cls(None)
        os.set_inheritable(int(given), False)
        return cls(int(given))

    def progress(self, what: str, done: int, total: int) -> None:
        percent = 100 * done // total if total > 0 else 100
        if (what, percent) != self._shown:
            self._shown = (what, percent)
            self._write({"progress": [what[:_SHORT], done, total]})

    def ready(self, text: str) -> None:
        """Worth waiting for, should the pipe be full."""
        if self._fd is not None:
            select.select([], [self._fd], [])
        self._write({"ready": text[:_SHORT]})

    def alive(self) -> None:
        self._write({"alive": True})

    def _write(self, told: object) -> None:
        """A supervisor that does not read misses a sign of life; one that is gone misses nothing."""
        if self._fd is None:
            return
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._fd, json.dumps(told).encode() + b"\n")
