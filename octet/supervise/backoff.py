"""How long to wait before a process that died is started again."""

from collections.abc import Callable
from dataclasses import dataclass

from octet.clock import Clock


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds."""

    first: float = 0.2
    most: float = 30.0
    healthy: float = 30.0
    """Whoever was ready for so long starts afresh."""
    spread: float = 0.25
    """The share of a delay that is drawn: those who died together do not come back together."""


class Backoff:
    """Doubles with every death in a row."""

    def __init__(self, clock: Clock, draw: Callable[[], float], delays: Delays | None = None) -> None:
        """`draw` draws from [0, 1)."""
        self._clock = clock
        self._draw = draw
        self._delays = delays or Delays()
        self._ready_at: float | None = None
        self.num_deaths = 0
        """In a row."""

    def ready(self) -> None:
        self._ready_at = self._clock.now()

    def died(self) -> float:
        """Seconds until the next start."""
        if self._ready_at is not None and self._clock.now() - self._ready_at >= self._delays.healthy:
            self.num_deaths = 0
        self._ready_at = None
        self.num_deaths += 1
        longest = self._longest()
        return longest * (1 - self._delays.spread * self._draw())

    def _longest(self) -> float:
        doublings = min(self.num_deaths - 1, 64)
        return min(self._delays.most, self._delays.first * 2.0**doublings)
