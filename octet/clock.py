"""Clocks that are passed in, so that state machines can be replayed and simulated."""

import time
from math import inf
from typing import Protocol


def wall_ms() -> int:
    """Return milliseconds since 1970. The wall clock may jump."""
    return time.time_ns() // 1_000_000


class Clock(Protocol):
    def now(self) -> float:
        """Return monotonic seconds. Only differences are meaningful."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class ManualClock:
    """A clock that only `sleep` advances, immediately and exactly."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        if not 0 <= seconds < inf:
            raise ValueError(f"a clock can only move forward by a finite time, got {seconds} seconds")
        self._now += seconds


def earliest(*times: float | None) -> float | None:
    return min((each for each in times if each is not None), default=None)
