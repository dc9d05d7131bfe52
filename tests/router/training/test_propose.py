"""A proposed threshold is the smallest that reaches a goal, or the largest within a budget. With too little data, none
is proposed."""

from math import ceil

from hypothesis import assume, given
from hypothesis import strategies as st

from octet.client.records import Comparison
from octet.v1 import operator_pb2 as wire
from router.routing.training.shadow_thresholds import (
    GRID,
    BudgetGoal,
    CatchGoal,
    ComparisonPoint,
    MissingData,
    ThresholdCurve,
    ThresholdProposal,
    comparison_point,
    min_cases,
    propose_threshold,
    threshold_above,
    threshold_not_above,
    tune_thresholds,
)

OUTCOMES = ("passed", "failed", "skipped", "unavailable")
CONFIDENCES = st.floats(0, 0.999) | st.integers(0, 99).map(lambda hundredths: hundredths / 100)
SHARES = st.sampled_from([0.3, 0.5, 0.75, 0.9])


def made(confidence: float | None, primary: str, shadow: str, **more: object) -> Comparison:
    message = wire.Comparison(
        confidence=confidence,
        primary_outcome=primary,
        shadow_outcome=shadow,
        **{"why": "low_confidence", "agreed": primary == shadow, **more},  # type: ignore[arg-type]
    )
    return Comparison.from_wire(message)


COMPARISONS = st.builds(made, CONFIDENCES, st.sampled_from(OUTCOMES), st.sampled_from(OUTCOMES))


def points_of(comparisons: list[Comparison]) -> list[ComparisonPoint]:
    return [point for point in map(comparison_point, comparisons) if point is not None]


@given(st.floats(0, 1))
def test_a_threshold_is_the_next_hundredth(confidence: float) -> None:
    above, not_above = threshold_above(confidence), threshold_not_above(confidence)
    assert above > confidence or above == 1 == confidence
    assert above == 0 or (round(above * GRID) - 1) / GRID <= confidence
    assert not_above <= confidence < (round(not_above * GRID) + 1) / GRID


@given(st.lists(COMPARISONS, min_size=1, max_size=250))
def test_a_row_counts_all_cases_below_its_threshold(comparisons: list[Comparison]) -> None:
    curve = ThresholdCurve(points_of(comparisons))
    for row in (*curve.rows(), curve.at(1.0)):
        below = [one for one in comparisons if one.confidence is not None and one.confidence < row.threshold]
        outcomes = [(one.primary_outcome, one.shadow_outcome) for one in below]
        assert row.shadowed == len(below)
        assert row.disagreements == sum(not one.agreed for one in below)
        assert row.saves == outcomes.count(("failed", "passed"))
        assert row.losses == outcomes.count(("passed", "failed"))
    assert curve.rows()[-1].shadowed == curve.total, "the last row must cover all data"


@given(st.lists(COMPARISONS, min_size=1, max_size=400), SHARES, st.sampled_from(["saves", "disagreements"]))
def test_a_catch_goal_takes_the_smallest_threshold_that_reaches_it(
    comparisons: list[Comparison], share: float, aim: str
) -> None:
    curve = ThresholdCurve(points_of(comparisons))
    rule = CatchGoal(share, aim)  # type: ignore[arg-type]
    cases = curve.caught(rule.aim)
    outcome = propose_threshold(curve, rule)
    if len(cases) < min_cases(share):
        assert isinstance(outcome, MissingData) and outcome.missing == min_cases(share) - len(cases) > 0
        assert (outcome.comparisons is None) == (not cases)
        return
    assert isinstance(outcome, ThresholdProposal)
    needed = ceil(share * len(cases) - 1e-9)
    assert sum(each < outcome.threshold for each in cases) >= needed
    smaller = (round(outcome.threshold * GRID) - 1) / GRID
    assert sum(each < smaller for each in cases) < needed
    assert outcome.low <= outcome.threshold <= outcome.high


@given(st.lists(COMPARISONS, min_size=1, max_size=400), SHARES)
def test_a_budget_takes_the_largest_threshold_within_it(comparisons: list[Comparison], share: float) -> None:
    curve = ThresholdCurve(points_of(comparisons))
    outcome = propose_threshold(curve, BudgetGoal(share))
    if curve.total < min_cases(share):
        assert isinstance(outcome, MissingData) and outcome.comparisons == outcome.missing
        return
    assert isinstance(outcome, ThresholdProposal)
    assert curve.at(outcome.threshold).shadowed <= share * curve.total + 1e-9
    assume(outcome.threshold < 1)
    assert curve.at(round(outcome.threshold * GRID + 1) / GRID).shadowed > share * curve.total
    assert outcome.low <= outcome.threshold <= outcome.high + 1 / GRID


def test_only_shadows_for_low_confidence_count() -> None:
    seen = [
        made(0.2, "failed", "passed", intent="review"),
        made(0.3, "failed", "passed"),
        made(0.2, "failed", "passed", why="fresh_lane"),
        made(0.2, "failed", "passed", why="demoted"),
        made(None, "failed", "passed"),
    ]
    tuning = tune_thresholds(seen, CatchGoal(0.9), {"review": 0.4})
    assert [(each.intent, each.curve.total, each.now) for each in tuning.intents] == [
        ("review", 1, 0.4),
        ("unspecified", 1, None),
    ]
    assert tuning.left_out == 3
