"""What every threshold would have cost and caught, of the requests that were shadowed."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, floor

from router.tuning.interval import share_interval
from router.tuning.point import Point
from router.tuning.rule import Aim

GRID = 100
"""Thresholds are whole hundredths."""
_STEP = 5
"""Hundredths between the rows of a table."""


@dataclass(frozen=True, slots=True)
class Row:
    threshold: float
    shadowed: int
    """Requests below the threshold."""
    disagreements: int
    saves: int
    losses: int
    saves_interval: tuple[float, float]
    """Of the share of all saves."""


class Curve:
    def __init__(self, points: Sequence[Point]) -> None:
        """At least one."""
        ordered = sorted(points)
        self.confidences = [point.confidence for point in ordered]
        self.total = len(ordered)
        self.judged = sum(point.judged for point in ordered)
        self._disagreements = _counted([point.disagreed for point in ordered])
        self._saves = _counted([point.saved for point in ordered])
        self._losses = _counted([point.lost for point in ordered])
        self._points = ordered

    @property
    def reach(self) -> float:
        """Nothing is known of requests that were surer than that."""
        return self.confidences[-1]

    @property
    def saves(self) -> int:
        return self._saves[-1]

    @property
    def disagreements(self) -> int:
        return self._disagreements[-1]

    def caught(self, aim: Aim) -> list[float]:
        """The confidences of what a threshold is for, in order."""
        if aim == "saves":
            return [point.confidence for point in self._points if point.saved]
        return [point.confidence for point in self._points if point.disagreed]

    def at(self, threshold: float) -> Row:
        shadowed = bisect_left(self.confidences, threshold)
        saves = self._saves[shadowed]
        return Row(
            threshold=threshold,
            shadowed=shadowed,
            disagreements=self._disagreements[shadowed],
            saves=saves,
            losses=self._losses[shadowed],
            saves_interval=share_interval(saves, self.saves),
        )

    def rows(self) -> list[Row]:
        """As far as the data reach, and one step beyond."""
        last = min(GRID, (floor(self.reach * GRID) // _STEP + 1) * _STEP)
        return [self.at(hundredths / GRID) for hundredths in range(_STEP, last + 1, _STEP)]

    def saves_above(self, confidence: float) -> tuple[int, int]:
        """Saves, and all requests, that were at least so sure."""
        first = bisect_left(self.confidences, confidence)
        return self.saves - self._saves[first], self.total - first


def threshold_above(confidence: float) -> float:
    """The smallest that has a request of this confidence shadowed: shadowed is what is below it."""
    hundredths = floor(confidence * GRID)
    while hundredths < GRID and hundredths / GRID <= confidence:
        hundredths += 1
    return hundredths / GRID


def threshold_not_above(confidence: float) -> float:
    """The largest that leaves a request of this confidence alone."""
    hundredths = ceil(confidence * GRID)
    while hundredths / GRID > confidence:
        hundredths -= 1
    return hundredths / GRID


def _counted(flags: Sequence[bool]) -> list[int]:
    return list(accumulate(flags, initial=0))
