"""Ctrl-C that cancels, and does not raise wherever the program happens to be: what waits for gRPC holds its locks."""

import signal
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """`with Interrupt(answer.cancel) as interrupt: ...`, in the main thread: whoever reads it gets Cancelled."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.pressed = False
        self._cancel = cancel
        self._keys: SimpleQueue[bool] = SimpleQueue()
        """All that a signal's handler may touch: it may come while any lock is held."""
        self._thread = Thread(target=self._wait, daemon=True)
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        self._thread.start()
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._keys.put(False)
        self._thread.join()

    def _press(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True
        self._keys.put(True)

    def _wait(self) -> None:
        if self._keys.get():
            self._cancel()
