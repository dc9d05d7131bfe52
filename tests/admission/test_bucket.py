"""Retries never outrun what was answered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.bucket import RetryBucket


@given(
    burst=st.floats(0, 20),
    ratio=st.floats(0, 1),
    events=st.lists(st.booleans(), max_size=200),
)
def test_retries_are_bounded_by_the_burst_and_by_what_was_answered(
    burst: float, ratio: float, events: list[bool]
) -> None:
    bucket = RetryBucket(burst, ratio)
    num_taken = num_answered = 0
    for is_answer in events:
        if is_answer:
            bucket.answered()
            num_answered += 1
        else:
            full_enough = bucket.tokens >= 1
            assert bucket.take() == full_enough
            num_taken += full_enough
        assert 0 <= bucket.tokens <= burst
        assert num_taken <= burst + ratio * num_answered + 1e-9


def test_an_empty_bucket_fills_again() -> None:
    bucket = RetryBucket(2, 0.5)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    bucket.answered()
    assert not bucket.take()
    bucket.answered()
    assert bucket.take()


@pytest.mark.parametrize(("burst", "ratio"), [(-1, 0.1), (1, -0.1)])
def test_negative_figures_are_refused(burst: float, ratio: float) -> None:
    with pytest.raises(ValueError):
        RetryBucket(burst, ratio)
