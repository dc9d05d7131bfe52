"""Sums of figures over stretches of time, in small steps. Time is handed in, and never steps back."""

from collections import deque
from collections.abc import Iterator


class Buckets:
    """Each is a list of figures that began at a multiple of the grain."""

    def __init__(self, num_figures: int, span: float, grain: float) -> None:
        """What began longer than `span` seconds ago is forgotten."""
        self._num_figures = num_figures
        self._span = span
        self._grain = grain
        self._kept: deque[tuple[float, list[float]]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def at(self, now: float) -> list[float]:
        """The one that things which happen now are added to."""
        start = now // self._grain * self._grain
        if not self._kept or self._kept[-1][0] < start:
            self._forget(now)
            self._kept.append((start, [0.0] * self._num_figures))
        return self._kept[-1][1]

    def sums(self, after: float, until: float) -> list[float]:
        """Of what began after one moment, and not after the other."""
        found = list(zip(*self._between(after, until), strict=True))
        return [sum(each) for each in found] or [0.0] * self._num_figures

    def _between(self, after: float, until: float) -> Iterator[list[float]]:
        return (figures for start, figures in self._kept if after < start <= until)

    def _forget(self, now: float) -> None:
        while self._kept and self._kept[0][0] <= now - self._span:
            self._kept.popleft()
