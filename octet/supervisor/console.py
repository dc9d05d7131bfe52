"""Output of the supervisor: log lines and progress, never blocking on a slow reader."""

import json
import os
import select
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from octet.telemetry.logs import format_rfc3339

SUPERVISOR_NAME = "serve"  # the supervisor's own name in JSON log lines
_BAR = 24
_ERASE_LINE, _UP = "\x1b[2K", "\x1b[1A"
_MAX_BUFFERED = 1 << 20  # bytes waiting for the reader; further lines are dropped and counted
_FINISH_SECONDS = 1.0


class NonBlockingWriter:
    """Writes without blocking: a full pipe or a stopped terminal (Ctrl-S) must not stop the supervisor."""

    def __init__(self, fd: int, max_buffered: int = _MAX_BUFFERED) -> None:
        self.fd = _reopen_non_blocking(fd)
        self._max_buffered = max_buffered
        self._buffer = bytearray()
        self._num_lost_lines = 0

    @property
    def is_waiting(self) -> bool:
        """Whether output is buffered; `flush` can write it as soon as the descriptor is writable."""
        return bool(self._buffer)

    def write(self, text: str) -> bool:
        """Write or buffer the text and return True. If the buffer is full, drop the whole text and return False."""
        data = text.encode(errors="replace")
        self.flush()
        if self._buffer and len(self._buffer) + len(data) > self._max_buffered:
            self._num_lost_lines += text.count("\n")
            return False
        self._buffer += data
        self.flush()
        return True

    def flush(self) -> None:
        """Write as much as the reader accepts now."""
        self._send()
        if self._num_lost_lines and not self._buffer:
            self._buffer += f"... {self._num_lost_lines} lines lost: the reader was too slow\n".encode()
            self._num_lost_lines = 0
            self._send()

    def finish(self) -> None:
        """Flush, waiting up to a second for the reader."""
        end = time.monotonic() + _FINISH_SECONDS
        self.flush()
        while self._buffer and (left := end - time.monotonic()) > 0 and self._is_writable(left):
            self.flush()

    def _send(self) -> None:
        while self._buffer and self._is_writable(0):
            try:
                num_written = os.write(self.fd, self._buffer[: select.PIPE_BUF])
            except BlockingIOError:
                return
            except OSError:  # the reader is gone
                self._buffer.clear()
                return
            del self._buffer[:num_written]

    def _is_writable(self, seconds: float) -> bool:
        """Whether a write of at most PIPE_BUF bytes would not block; it may still fail."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))


def _reopen_non_blocking(fd: int) -> int:
    """Return a new descriptor. A pipe or terminal is opened again, because setting O_NONBLOCK on `fd` would affect all
    processes that share it. A regular file never blocks, so its descriptor is duplicated."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(fd)


class Console:
    """Prints one line when a start-up step begins and one when a process is ready."""

    def __init__(self, writer: NonBlockingWriter, names: Sequence[str]) -> None:
        self._writer = writer
        self._width = max(map(len, names), default=0)
        self._current: dict[str, str] = {}

    def log(self, name: str, line: str) -> None:
        """Print a line that a process wrote."""
        self.say(f"{name:{self._width}} | {line}")

    def say(self, text: str) -> None:
        """Print a message from the supervisor."""
        self._writer.write(text + "\n")

    def progress(self, name: str, what: str, done: int, total: int) -> None:
        if self._current.get(name) != what:
            self._current[name] = what
            self.log(name, f"{what} ...")

    def ready(self, name: str, pid: int, seconds: float) -> None:
        self.log(name, f"ready after {seconds:.1f} s, pid {pid}")

    def settle(self) -> None:
        """End the start-up: stop showing progress."""
        self._current.clear()


class LiveConsole(Console):
    """Prints log lines and, below them, one row for each process, redrawn on every change."""

    def __init__(
        self, writer: NonBlockingWriter, names: Sequence[str], size: Callable[[], os.terminal_size] | None = None
    ) -> None:
        super().__init__(writer, names)
        self._size = size or (lambda: os.get_terminal_size(writer.fd))
        self._current = dict.fromkeys(names, "starting")
        self._num_drawn = 0
        self._draw("")

    def say(self, text: str) -> None:
        self._draw(text + "\n")

    def progress(self, name: str, what: str, done: int, total: int) -> None:
        if name in self._current:
            filled = _BAR * done // total if total > 0 else _BAR
            self._current[name] = f"[{'#' * filled}{'.' * (_BAR - filled)}] {what}"
            self._draw("")

    def ready(self, name: str, pid: int, seconds: float) -> None:
        if name not in self._current:
            super().ready(name, pid, seconds)
            return
        self._current[name] = f"ready after {seconds:.1f} s, pid {pid}"
        self._draw("")

    def settle(self) -> None:
        super().settle()
        self._draw("")

    def _draw(self, above: str) -> None:
        erase = "\r" + _ERASE_LINE + (_UP + _ERASE_LINE) * self._num_drawn
        rows = self._fit_rows()
        if self._writer.write(erase + above + "".join(row + "\n" for row in rows)):
            self._num_drawn = len(rows)

    def _fit_rows(self) -> list[str]:
        """Return as many rows as fit on the terminal, cut to its width."""
        try:
            columns, lines = self._size()
        except OSError:  # the terminal was closed
            columns, lines = 0, 0
        rows = [f"{name:{self._width}} | {text}" for name, text in self._current.items()]
        room = max(1, (lines or 24) - 2)
        if len(rows) > room:
            rows = [*rows[: room - 1], f"... and {len(rows) - room + 1} more"]
        return [row[: max(1, (columns or 80) - 1)] for row in rows]


def open_console(writer: NonBlockingWriter, names: Sequence[str]) -> Console:
    return LiveConsole(writer, names) if os.isatty(writer.fd) else Console(writer, names)


class JsonConsole(Console):
    """Prints every line as a JSON object that names its process."""

    def __init__(self, writer: NonBlockingWriter, wall: Callable[[], float]) -> None:
        """`wall` returns seconds since 1970."""
        super().__init__(writer, ())
        self._wall = wall

    def log(self, name: str, line: str) -> None:
        plain = {"time": format_rfc3339(self._wall()), "level": "INFO", "message": line}
        record = {**(_parse_log_object(line) or plain), "process": name}
        self._writer.write(json.dumps(record) + "\n")

    def say(self, text: str) -> None:
        for line in text.splitlines():
            self.log(SUPERVISOR_NAME, line)

    def progress(self, name: str, what: str, done: int, total: int) -> None:
        """Do nothing: progress is not logged."""


def _parse_log_object(line: str) -> dict[str, Any] | None:
    """Return the record; None for a line that is not one of Octet's JSON log records."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "message" in record else None
