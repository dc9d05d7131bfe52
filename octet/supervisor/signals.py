"""Signals as a readable descriptor, and the controlling terminal."""

import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

SUPERVISOR_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@contextmanager
def signal_handlers(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> Iterator[None]:
    """Handle these signals inside the `with` block, and restore the previous handlers after it."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


class Wakeup:
    """Wakes a `select` loop from another thread. It works only inside its `with` block."""

    def __enter__(self) -> Self:
        self._out, self._in = socket.socketpair()
        self._out.setblocking(False)
        self._in.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        self._in.close()

    @property
    def fd(self) -> int:
        """A descriptor that is readable after `set`."""
        return self._out.fileno()

    @property
    def descriptors(self) -> list[int]:
        return [self._out.fileno(), self._in.fileno()]

    def set(self) -> None:
        with suppress(OSError):  # the buffer is full: the loop wakes anyway
            self._in.send(b"!")

    def clear(self) -> bytes:
        try:
            return self._out.recv(4096)
        except BlockingIOError:
            return b""


class SignalPipe(Wakeup):
    """Wakes a `select` loop on signals, inside its `with` block. `take` returns the received signals in order."""

    def __init__(self, numbers: Iterable[signal.Signals] = SUPERVISOR_SIGNALS) -> None:
        # The handler does nothing, because Python itself writes the number to the wakeup descriptor.
        self._handlers = signal_handlers(numbers, lambda *_: None)

    def __enter__(self) -> Self:
        super().__enter__()
        self._handlers.__enter__()
        signal.set_wakeup_fd(self._in.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._handlers.__exit__(None, None, None)
        super().__exit__()

    def take(self) -> list[signal.Signals]:
        return [signal.Signals(number) for number in self.clear()]


class ControllingTerminal:
    """Tells whether the terminal was closed. SIGHUP can mean that, or it can be a request to reload."""

    def __enter__(self) -> Self:
        self.descriptors: list[int] = []
        with suppress(OSError):  # there may be no terminal
            self.descriptors.append(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
        return self

    def __exit__(self, *_: object) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    @property
    def is_closed(self) -> bool:
        try:
            for fd in self.descriptors:
                os.tcgetpgrp(fd)
        except OSError:
            return True
        return False
