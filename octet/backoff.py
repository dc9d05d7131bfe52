"""Delays between failed attempts: doubled with every consecutive failure, up to a limit."""

from collections.abc import Callable
from dataclasses import dataclass

from octet.clock import Clock


@dataclass(frozen=True, slots=True)
class BackoffDelays:
    """Settings of a backoff. Times are in seconds."""

    first: float = 0.2
    most: float = 30.0
    healthy: float = 30.0  # after a process was ready for this long, its next failure counts as the first
    spread: float = 0.25  # largest share randomly cut off a delay, so that processes that failed together restart apart


class Backoff:
    def __init__(self, clock: Clock, draw: Callable[[], float], delays: BackoffDelays | None = None) -> None:
        """`draw` returns a random number in [0, 1)."""
        self._clock = clock
        self._draw = draw
        self._delays = delays or BackoffDelays()
        self._ready_at: float | None = None
        self.num_failures = 0  # consecutive failures

    def mark_ready(self) -> None:
        self._ready_at = self._clock.now()

    def next_delay(self) -> float:
        """Record a failure and return the seconds to wait before the next attempt."""
        if self._ready_at is not None and self._clock.now() - self._ready_at >= self._delays.healthy:
            self.num_failures = 0
        self._ready_at = None
        self.num_failures += 1
        doublings = min(self.num_failures - 1, 64)
        longest = min(self._delays.most, self._delays.first * 2.0**doublings)
        return longest * (1 - self._delays.spread * self._draw())
