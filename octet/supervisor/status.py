"""Status messages from a process to its supervisor: one JSON object per line, over a pipe."""

import json
import os
import select
from contextlib import suppress
from typing import Any

STATUS_FD_VARIABLE = "OCTET_STATUS_FD"  # names the pipe for a process that runs as a program
_MAX_TEXT = 300  # characters. The kernel writes 4096 bytes atomically, and JSON takes up to twelve bytes per character.


def parse_status(line: bytes) -> dict[str, Any] | None:
    """Return None for a line that is not a status message."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match message:
        case {"progress": [str(), int(), int()]} | {"ready": str()} | {"alive": True}:
            return dict(message)
    return None


class StatusReporter:
    """The process's end of the pipe. Without a supervisor it does nothing."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._last_progress: tuple[str, int] | None = None
        if fd is not None:
            os.set_blocking(fd, False)

    @classmethod
    def from_environment(cls) -> "StatusReporter":
        """Create a reporter if a supervisor started this program; its own children do not inherit the pipe."""
        given = os.environ.pop(STATUS_FD_VARIABLE, "")
        if not given.isdecimal():
            return cls(None)
        os.set_inheritable(int(given), False)
        return cls(int(given))

    def progress(self, what: str, done: int, total: int) -> None:
        """Send progress once per percent."""
        percent = 100 * done // total if total > 0 else 100
        if (what, percent) != self._last_progress:
            self._last_progress = (what, percent)
            self._write({"progress": [what[:_MAX_TEXT], done, total]})

    def ready(self, text: str) -> None:
        """Send the message. Wait while the pipe is full, because this message must not be lost."""
        if self._fd is not None:
            select.select([], [self._fd], [])
        self._write({"ready": text[:_MAX_TEXT]})

    def alive(self) -> None:
        self._write({"alive": True})

    def _write(self, message: object) -> None:
        """Drop the message if the pipe is full or the supervisor is gone."""
        if self._fd is None:
            return
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._fd, json.dumps(message).encode() + b"\n")
