"""A tuning for machines."""

from dataclasses import asdict
from typing import Any

from router.tuning.propose import Proposed
from router.tuning.tune import Tuned, Tuning


def as_json(tuning: Tuning) -> dict[str, Any]:
    return {
        "rule": str(tuning.rule),
        "left_out": tuning.left_out,
        "intents": {tuned.intent: _intent(tuned) for tuned in tuning.intents},
    }


def _intent(tuned: Tuned) -> dict[str, Any]:
    curve, outcome = tuned.curve, tuned.outcome
    is_proposed = isinstance(outcome, Proposed)
    return {
        "now": tuned.now,
        "shadows": curve.total,
        "verified": curve.judged,
        "saves": curve.saves,
        "disagreements": curve.disagreements,
        "reach": curve.reach,
        "proposed": asdict(outcome) if is_proposed else None,
        "missing": None if is_proposed else asdict(outcome),
        "thresholds": [asdict(row) for row in curve.rows()],
    }
