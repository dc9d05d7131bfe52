"""A proposal for every intent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octet.sdk.operating import Comparison
from router.tuning.curve import Curve
from router.tuning.point import Point, intent_of, point_of
from router.tuning.propose import Missing, Proposed, propose
from router.tuning.rule import Rule


@dataclass(frozen=True, slots=True)
class Tuned:
    intent: str
    curve: Curve
    outcome: Proposed | Missing
    now: float | None
    """The threshold in force; None where nobody said."""


@dataclass(frozen=True, slots=True)
class Tuning:
    rule: Rule
    intents: tuple[Tuned, ...]
    left_out: int
    """Comparisons that no threshold ordered."""


def tune(comparisons: Iterable[Comparison], rule: Rule, now: Mapping[str, float]) -> Tuning:
    """`now`: the thresholds in force, by intent."""
    points: dict[str, list[Point]] = {}
    left_out = 0
    for comparison in comparisons:
        point = point_of(comparison)
        if point is None:
            left_out += 1
        else:
            points.setdefault(intent_of(comparison), []).append(point)
    tuned = (_tuned(intent, Curve(found), rule, now.get(intent)) for intent, found in sorted(points.items()))
    return Tuning(rule, tuple(tuned), left_out)


def _tuned(intent: str, curve: Curve, rule: Rule, now: float | None) -> Tuned:
    return Tuned(intent, curve, propose(curve, rule), now)
