"""A clock that stands still while this process waits for a CPU, so that a busy machine delays no request."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from threading import get_ident
from types import SimpleNamespace
from typing import Any

from pytest import MonkeyPatch

from octet.clock import SystemClock
from router import server

_LEAST_SLEEP = 0.0005


class OwnClock:
    """Seconds that an event loop has waited for events, at most as long as it meant to, and seconds of CPU time of its
    thread. The loop runs in the thread that creates the clock."""

    def __init__(self) -> None:
        self._cpu_clock = time.pthread_getcpuclockid(get_ident())
        self._now = self._begin_work(time.monotonic())

    def now(self) -> float:
        return self._now()

    def sleep(self, seconds: float) -> None:
        end = self.now() + seconds
        while (left := end - self.now()) > 0:
            time.sleep(max(left, _LEAST_SLEEP))

    def select(self, select: Callable[[float | None], Any], timeout: float | None) -> Any:
        """Wait for events by `select`."""
        self._now = self._begin_wait(self.now(), inf if timeout is None else max(0.0, timeout))
        try:
            return select(timeout)
        finally:
            self._now = self._begin_work(self.now())

    def _begin_wait(self, base: float, most: float) -> Callable[[], float]:
        began = time.monotonic()
        return lambda: base + min(time.monotonic() - began, most)

    def _begin_work(self, base: float) -> Callable[[], float]:
        clock = self._cpu_clock
        began = time.clock_gettime(clock)
        return lambda: base + time.clock_gettime(clock) - began


@contextmanager
def own_time() -> Iterator[None]:
    """Let the running loop, and all routers and replicas created within the block, use an `OwnClock`."""
    clock, ahead = OwnClock(), time.time() - time.monotonic()
    loop: Any = asyncio.get_running_loop()
    select = loop._selector.select
    with MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", clock.now)
        patch.setattr(loop._selector, "select", lambda timeout=None: clock.select(select, timeout))
        patch.setattr(SystemClock, "now", staticmethod(clock.now))
        patch.setattr(SystemClock, "sleep", staticmethod(clock.sleep))
        patch.setattr(server, "time", SimpleNamespace(time=lambda: ahead + clock.now()))
        patch.setattr(server, "wall_ms", lambda: round((ahead + clock.now()) * 1000))
        yield
