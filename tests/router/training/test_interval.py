"""Confidence intervals contain the true value in 95 of 100 cases."""

from math import isclose
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.routing.training.shadow_thresholds import min_cases, quantile_ranks, share_interval

SHARES = st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.9, 0.99])


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_a_share_lies_in_its_interval_and_both_ends_are_shares(hits: int, more: int) -> None:
    total = hits + more
    low, high = share_interval(hits, total)
    assert 0 <= low <= (hits / total if total else 0.5) <= high <= 1
    if total:
        mirrored = share_interval(more, total)
        assert isclose(mirrored[0], 1 - high, abs_tol=1e-9) and isclose(mirrored[1], 1 - low, abs_tol=1e-9)
        wider = share_interval(hits * 4, total * 4)
        assert low <= wider[0] + 1e-9 and wider[1] <= high + 1e-9, "four times as many cases must narrow the interval"


def test_an_interval_equals_the_textbook_example() -> None:
    """The example of Agresti and Coull: 9 successes in 10 trials."""
    low, high = share_interval(9, 10)
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)


@given(SHARES, st.integers(0, 400))
def test_a_quantile_interval_is_bounded_only_with_enough_cases(share: float, total: int) -> None:
    low, high = quantile_ranks(share, total)
    assert -1 <= low <= high <= total
    if share >= 0.5:
        assert (high < total) == (total >= min_cases(share))
    else:
        assert (low >= 0) == (total >= min_cases(share))


@pytest.mark.parametrize(("share", "total"), [(0.9, 36), (0.9, 200), (0.5, 60), (0.1, 300)])
def test_the_quantile_lies_in_its_interval(share: float, total: int) -> None:
    """For uniform random numbers between 0 and 1, the quantile at `share` is `share` itself."""
    low, high = quantile_ranks(share, total)
    random, rounds, hits = Random(0), 1500, 0
    for _ in range(rounds):
        cases = sorted(random.random() for _ in range(total))
        hits += cases[low] <= share <= cases[high]
    assert hits / rounds >= 0.94


def test_many_cases_are_handled() -> None:
    low, high = quantile_ranks(0.9, 50_000)
    assert 44_700 < low < 45_000 < high < 45_300
