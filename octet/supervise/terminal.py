"""The terminal a process was started from, and whether it is still there."""

import os
from contextlib import suppress


class Terminal:
    """A terminal that closes says SIGHUP, as does whoever wants a configuration read again."""

    def __init__(self) -> None:
        self._fd = -1

    def __enter__(self) -> "Terminal":
        with suppress(OSError):  # there is none
            self._fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def own(self) -> list[int]:
        return [] if self._fd < 0 else [self._fd]

    @property
    def gone(self) -> bool:
        if self._fd < 0:
            return False
        try:
            os.tcgetpgrp(self._fd)
        except OSError:
            return True
        return False
