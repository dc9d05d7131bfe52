"""Seconds of work a second, by priority, the past fading with time."""

from math import exp


class Flow:
    def __init__(self, memory: float) -> None:
        """What was added `memory` seconds ago counts about a third of what is added now."""
        self._memory = memory
        self._sums: dict[int, float] = {}
        self._until: float | None = None

    def add(self, now: float, priority: int, seconds: float) -> None:
        self._fade(now)
        self._sums[priority] = self._sums.get(priority, 0.0) + seconds

    def from_priority(self, now: float, least: int | None) -> float:
        """Of this priority and those above; of all for None."""
        self._fade(now)
        return sum(work for each, work in self._sums.items() if least is None or each >= least) / self._memory

    def _fade(self, now: float) -> None:
        passed = 0.0 if self._until is None else max(0.0, now - self._until)
        self._until = now
        keep = exp(-passed / self._memory)
        for priority in list(self._sums):
            self._sums[priority] *= keep
            if self._sums[priority] < 1e-6:
                del self._sums[priority]
