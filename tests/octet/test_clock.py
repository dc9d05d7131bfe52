"""No clock goes back, and a manual clock advances only through calls to `sleep`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import Clock, ManualClock, SystemClock

seconds = st.integers(0, 10**6).map(lambda ticks: ticks / 1024)
"""Binary fractions, whose sums are exact."""


@given(seconds, st.lists(seconds))
def test_a_manual_clock_advances_by_its_sleeps(start: float, naps: list[float]) -> None:
    clock = ManualClock(start)
    for nap in naps:
        clock.sleep(nap)
    assert clock.now() == start + sum(naps)


@given(st.floats(max_value=0, exclude_max=True))
def test_a_manual_clock_refuses_to_go_back(nap: float) -> None:
    clock = ManualClock(5.0)
    with pytest.raises(ValueError, match="forward by a finite time"):
        clock.sleep(nap)
    assert clock.now() == 5.0


def test_a_manual_clock_stands_still_between_sleeps() -> None:
    clock = ManualClock()
    assert {clock.now() for _ in range(100)} == {0.0}


def test_a_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)


def test_a_system_clock_sleeps_at_least_as_long_as_requested() -> None:
    clock = SystemClock()
    before = clock.now()
    clock.sleep(0.01)
    assert clock.now() - before >= 0.01


@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()], ids=["manual", "system"])
@pytest.mark.parametrize("nap", [-1.0, float("nan")])
def test_no_clock_sleeps_for_an_invalid_duration(clock: Clock, nap: float) -> None:
    with pytest.raises(ValueError):
        clock.sleep(nap)
