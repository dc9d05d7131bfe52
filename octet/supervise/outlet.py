"""Somewhere to write where nobody may be reading, without ever waiting for whoever should."""

import os
import select
import stat
import time
from contextlib import suppress

_MOST = 1 << 20
"""Bytes that wait to be read; what comes on top of them is lost, and counted."""
_LAST_SECONDS = 1.0
"""For the last words to be taken."""


class Outlet:
    """A full pipe or a terminal that was halted (Ctrl-S) must not stop those who look after others."""

    def __init__(self, fd: int, most: int = _MOST) -> None:
        self._fd = _opened_again(fd)
        self._most = most
        self._waiting = bytearray()
        self._num_lost = 0
        """Lines."""

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def waits(self) -> bool:
        """Whether `flush` has something to do as soon as the descriptor is writable."""
        return bool(self._waiting)

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, text: str) -> bool:
        """False: it is lost, all of it."""
        data = text.encode(errors="replace")
        self.flush()
        if self._waiting and len(self._waiting) + len(data) > self._most:
            self._num_lost += text.count("\n")
            return False
        self._waiting += data
        self.flush()
        return True

    def flush(self) -> None:
        """As much as is taken now."""
        self._send()
        if self._num_lost and not self._waiting:
            self._waiting += f"... {self._num_lost} lines are lost here: nobody was reading\n".encode()
            self._num_lost = 0
            self._send()

    def finish(self) -> None:
        """The last words wait a moment to be taken."""
        end = time.monotonic() + _LAST_SECONDS
        self.flush()
        while self._waiting and (left := end - time.monotonic()) > 0 and self._is_writable(left):
            self.flush()

    def _send(self) -> None:
        while self._waiting and self._is_writable(0):
            try:
                num_written = os.write(self._fd, self._waiting[: select.PIPE_BUF])
            except BlockingIOError:
                return
            except OSError:  # whoever read is gone
                self._waiting.clear()
                return
            del self._waiting[:num_written]

    def _is_writable(self, seconds: float) -> bool:
        """A piece as long as PIPE_BUF is then taken at once. An error is found by writing."""
        asked = select.poll()
        asked.register(self._fd, select.POLLOUT)
        return bool(asked.poll(seconds * 1000))


def _opened_again(fd: int) -> int:
    """Not blocking is a property of what was opened, which a shell and others share: so it is opened once more.

    A file never blocks, and opened again would be written from its beginning; what cannot be opened is shared.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(fd)
