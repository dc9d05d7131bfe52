"""What a comparison says about a threshold."""

from dataclasses import dataclass

from admission.knobs import UNSPECIFIED
from octet.sdk.operating import Comparison

_LOW_CONFIDENCE = "low_confidence"
_JUDGED = frozenset({"passed", "failed"})


@dataclass(frozen=True, slots=True, order=True)
class Point:
    confidence: float
    disagreed: bool
    judged: bool
    """Both answers could be."""
    saved: bool
    """Only the shadow's passed."""
    lost: bool
    """Only the primary's passed: what a second choice that answers instead would have cost."""


def point_of(comparison: Comparison) -> Point | None:
    """None for a shadow that no threshold ordered: a fresh lane's, or a demoted specialist's."""
    confidence = comparison.confidence
    if comparison.why != _LOW_CONFIDENCE or confidence is None or not 0 <= confidence <= 1:
        return None
    outcomes = (comparison.primary_outcome, comparison.shadow_outcome)
    return Point(
        confidence=confidence,
        disagreed=not comparison.agreed,
        judged=_JUDGED.issuperset(outcomes),
        saved=outcomes == ("failed", "passed"),
        lost=outcomes == ("passed", "failed"),
    )


def intent_of(comparison: Comparison) -> str:
    return comparison.intent or UNSPECIFIED
