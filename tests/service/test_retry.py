"""When to come back: when a place should be free, not all at once, and never later than the most."""

from hypothesis import given
from hypothesis import strategies as st

from specialist.service.retry import MOST_SECONDS, retry_after

draws = st.floats(0, 1, exclude_max=True)


@given(rate=st.floats(min_value=5e-324, max_value=1e300), draw=draws)
def test_not_before_a_place_is_free_and_never_after_the_most(rate: float, draw: float) -> None:
    seconds = retry_after(rate, lambda: draw)
    assert seconds is not None and 0 < seconds <= MOST_SECONDS
    assert seconds >= min(1 / rate, MOST_SECONDS / 2)
    assert seconds <= 1.5 / rate * (1 + 1e-12)


@given(rate=st.floats(min_value=1e-6, max_value=1e6), one=draws, other=draws)
def test_those_who_draw_differently_come_at_different_times(rate: float, one: float, other: float) -> None:
    if abs(one - other) > 1e-6:
        assert retry_after(rate, lambda: one) != retry_after(rate, lambda: other)


def test_nothing_measured_nothing_said() -> None:
    assert retry_after(None, lambda: 0.5) is None
