"""How often a figure fell into which range: counts, cheap to add to, read by whoever scrapes."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import inf


class Histogram:
    """Written by one thread, read by any. What is no measurement (negative, infinite, not a number) is not counted."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the largest values of each range, ascending; a last range has everything beyond."""
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"bounds must ascend, got {bounds!r:.100}")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        if 0 <= value < inf:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    @property
    def num_values(self) -> int:
        return sum(self.counts)
