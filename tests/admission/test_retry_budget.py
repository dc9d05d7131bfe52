"""Retries never exceed their share of requests or of answers."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.budgets import RetryBudget

Event = Literal["comes", "goes", "is answered", "is tried again"]


@given(
    burst=st.floats(0, 20),
    ratio=st.floats(0, 1),
    share=st.floats(0, 1),
    events=st.lists(st.sampled_from(["comes", "goes", "is answered", "is tried again"]), max_size=300),
)
def test_retries_are_bounded_by_the_burst_and_by_what_was_asked_and_answered(
    burst: float, ratio: float, share: float, events: list[Event]
) -> None:
    bucket = RetryBudget(burst, ratio, share)
    num_taken = num_answered = num_entered = num_inflight = 0
    for event in events:
        if event == "comes":
            bucket.enter()
            num_entered += 1
            num_inflight += 1
        elif event == "is answered":
            bucket.answered()
            num_answered += 1
        elif event == "goes" and num_inflight:
            bucket.leave()
            num_inflight -= 1
        elif event == "is tried again":
            rich_enough = bucket.tokens >= 1 or bucket.credit >= 1
            assert bucket.take() == rich_enough
            num_taken += rich_enough
        assert 0 <= bucket.tokens <= burst
        assert 0 <= bucket.credit <= share * num_inflight + 1e-9
        assert num_taken <= burst + ratio * num_answered + share * num_entered + 1e-9


@pytest.mark.parametrize(("num_inflight", "num_retries"), [(0, 2), (4, 2), (5, 3), (50, 12), (1000, 202)])
def test_of_many_requests_lost_at_once_a_share_is_retried(num_inflight: int, num_retries: int) -> None:
    bucket = RetryBudget(2, 0.1, 0.2)
    for _ in range(num_inflight):
        bucket.enter()
    assert sum(bucket.take() for _ in range(2000)) == pytest.approx(num_retries, abs=1)
    for _ in range(num_inflight):
        bucket.leave()
    assert not bucket.take(), "unspent budget expires with the requests that earned it"


def test_a_lane_that_always_fails_gets_at_most_a_fifth_more_attempts() -> None:
    bucket = RetryBudget(10, 0.1, 0.2)
    num_retries = 0
    for _ in range(64):
        bucket.enter()
    for _ in range(10_000):
        num_retries += bucket.take()
        bucket.leave()
        bucket.enter()
    assert num_retries <= 10 + 0.2 * 10_064 + 1


def test_an_empty_bucket_fills_again() -> None:
    bucket = RetryBudget(2, 0.5, 0)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    bucket.answered()
    assert not bucket.take()
    bucket.answered()
    assert bucket.take()


@pytest.mark.parametrize(("burst", "ratio", "share"), [(-1, 0.1, 0.2), (1, -0.1, 0.2), (1, 0.1, -0.2)])
def test_negative_figures_are_refused(burst: float, ratio: float, share: float) -> None:
    with pytest.raises(ValueError):
        RetryBudget(burst, ratio, share)
