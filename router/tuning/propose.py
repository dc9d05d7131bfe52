"""The threshold that a rule chooses, or how much is missing for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from router.tuning.curve import GRID, Curve, threshold_above, threshold_not_above
from router.tuning.interval import fewest, quantile_ranks
from router.tuning.rule import CAUGHT, Budget, Catch, Rule


@dataclass(frozen=True, slots=True)
class Proposed:
    threshold: float
    low: float
    high: float
    """Had other requests come, the same rule would have chosen between these, 95 times in 100."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Too little is known."""

    what: str
    there_are: int
    needed: int
    comparisons: int | None
    """More of them, about, at the rate so far; None where there is none yet."""

    @property
    def missing(self) -> int:
        return self.needed - self.there_are


def propose(curve: Curve, rule: Rule) -> Proposed | Missing:
    if isinstance(rule, Catch):
        return _catching(curve, rule)
    return _within(curve, rule)


def _catching(curve: Curve, rule: Catch) -> Proposed | Missing:
    cases = curve.caught(rule.aim)
    needed = fewest(rule.share)
    if len(cases) < needed:
        more = ceil((needed - len(cases)) * curve.total / len(cases)) if cases else None
        return Missing(CAUGHT[rule.aim], len(cases), needed, more)
    low, high = _interval(cases, rule.share)
    chosen = threshold_above(cases[ceil(rule.share * len(cases) - 1e-9) - 1])
    return Proposed(chosen, threshold_above(low), threshold_above(high))


def _within(curve: Curve, rule: Budget) -> Proposed | Missing:
    needed = fewest(rule.share)
    if curve.total < needed:
        return Missing("comparisons", curve.total, needed, needed - curve.total)
    low, high = _interval(curve.confidences, rule.share)
    return Proposed(_largest_within(curve, rule.share), *(threshold_not_above(each) for each in (low, high)))


def _largest_within(curve: Curve, share: float) -> float:
    most = share * curve.total + 1e-9
    return next(h / GRID for h in range(GRID, -1, -1) if curve.at(h / GRID).shadowed <= most)


def _interval(cases: Sequence[float], share: float) -> tuple[float, float]:
    low, high = quantile_ranks(share, len(cases))
    return (cases[low] if low >= 0 else 0.0), (cases[high] if high < len(cases) else 1.0)
