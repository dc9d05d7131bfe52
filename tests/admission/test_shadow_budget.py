"""Shadow requests never exceed their share of answers, nor the limit on those in flight."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.budgets import ShadowBudget

Event = Literal["answer", "shadow", "free shadow", "end"]
events = st.lists(st.sampled_from(["answer", "shadow", "free shadow", "end"]), max_size=300)


@given(share=st.floats(0, 1), most=st.integers(0, 6), events=events)
def test_shadows_are_bounded_by_share_and_number(share: float, most: int, events: list[Event]) -> None:
    budget = ShadowBudget(share, most)
    num_answered = num_counted = num_inflight = 0
    for event in events:
        if event == "answer":
            budget.earn()
            num_answered += 1
        elif event == "end" and num_inflight:
            budget.done()
            num_inflight -= 1
        elif event in ("shadow", "free shadow"):
            counted = event == "shadow"
            may = num_inflight < most and (budget.tokens >= 1 or not counted)
            assert budget.take(counted=counted) == may
            num_inflight += may
            num_counted += may and counted
        assert budget.inflight == num_inflight <= most
        assert num_counted <= 1 + share * num_answered + 1e-6 * num_answered
        assert 0 <= budget.tokens <= max(1, most)


@pytest.mark.parametrize("share", [0.1, 0.05, 1 / 3, 0.7, 1.0])
def test_earned_budget_can_be_spent(share: float) -> None:
    budget = ShadowBudget(share, 8)
    num_taken = 0
    for _ in range(3000):
        budget.earn()
        if budget.take():
            num_taken += 1
            budget.done()
    assert num_taken == pytest.approx(1 + 3000 * share, abs=1)


def test_ten_answers_at_a_tenth_earn_exactly_one_shadow() -> None:
    budget = ShadowBudget(0.1, 8)
    assert budget.take()
    for _ in range(9):
        budget.earn()
    assert not budget.take()
    budget.earn()
    assert budget.take()


def test_saved_budget_is_capped_by_the_limit_in_flight() -> None:
    budget = ShadowBudget(1.0, 3)
    for _ in range(100):
        budget.earn()
    assert budget.tokens == 3


def test_without_a_share_only_uncounted_shadows_are_sent() -> None:
    budget = ShadowBudget(0.0, 2)
    budget.earn()
    assert not budget.take()
    assert [budget.take(counted=False) for _ in range(3)] == [True, True, False]
    assert budget.tokens == 0


def test_new_rules_apply_at_once_and_shadows_in_flight_end_normally() -> None:
    budget = ShadowBudget(1.0, 4)
    for _ in range(4):
        budget.earn()
    assert budget.take()
    assert budget.take()
    budget.retune(1.0, 1)
    assert budget.tokens == 1
    assert not budget.take(counted=False)
    budget.done()
    budget.done()
    assert budget.take()
    budget.earn()
    assert budget.tokens == 1
    budget.retune(0.0, 4)
    assert not budget.take()


def test_an_end_without_a_start_is_an_error() -> None:
    with pytest.raises(ValueError, match="no shadow"):
        ShadowBudget(0.1, 1).done()


@pytest.mark.parametrize(("share", "most"), [(-0.1, 1), (1.1, 1), (float("nan"), 1), (0.5, -1)])
def test_invalid_figures_are_refused(share: float, most: int) -> None:
    with pytest.raises(ValueError):
        ShadowBudget(share, most)
