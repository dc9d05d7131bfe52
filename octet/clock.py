"""Time is handed in: a state machine that never reads the clock itself can be replayed and simulated."""

import time
from math import inf
from typing import Protocol


def wall_ms() -> int:
    """Milliseconds since 1970, for people."""
    return time.time_ns() // 1_000_000


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a clock that never steps back. Only differences mean anything."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to: sleeping is instant and exact."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        if not 0 <= seconds < inf:
            raise ValueError(f"a clock never steps back and never leaps to infinity, got {seconds} seconds")
        self._now += seconds
