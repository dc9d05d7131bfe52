"""Signals as something to wait for, beside pipes."""

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Any

from octet.supervise.spawn import SIGNALS


class Signals:
    """From entering to leaving, these come out of here, in order; unless it is said, those a supervisor handles."""

    def __init__(self, numbers: Iterable[signal.Signals] = SIGNALS) -> None:
        self._numbers = tuple(numbers)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Signals":
        self._out, self._in = socket.socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, _ignore)
        signal.set_wakeup_fd(self._in.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._out.close()
        self._in.close()

    @property
    def fd(self) -> int:
        """Readable when a signal has come."""
        return self._out.fileno()

    @property
    def own(self) -> list[int]:
        return [self._out.fileno(), self._in.fileno()]

    def take(self) -> list[signal.Signals]:
        try:
            return [signal.Signals(number) for number in self._out.recv(4096)]
        except BlockingIOError:
            return []


def _ignore(number: int, frame: FrameType | None) -> None:
    """Python writes the number to the wakeup descriptor; that is all that is wanted."""
