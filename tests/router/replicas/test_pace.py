"""The more replicas, the fewer reports of each; never so few that one counts for nothing before the next."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import DispatchConfig
from router.replicas.pace import LEAST_SECONDS, REPORTS_A_SECOND, kept_pace, pace_of

PLAIN = DispatchConfig()
COUNTS = st.integers(0, 5000)


@given(COUNTS, COUNTS)
def test_more_replicas_never_report_more_often(few: int, many: int) -> None:
    few, many = sorted((few, many))
    assert pace_of(few, PLAIN).interval <= pace_of(many, PLAIN).interval
    assert pace_of(few, PLAIN).heartbeat <= pace_of(many, PLAIN).heartbeat


@given(COUNTS, st.floats(0.05, 5), st.floats(0.2, 20), st.floats(0.01, 0.1))
def test_two_reports_come_while_one_counts(count: int, stale: float, hang: float, heartbeat: float) -> None:
    pace = pace_of(count, replace(PLAIN, stale_seconds=stale, hang_seconds=hang, heartbeat_seconds=heartbeat))
    assert pace.interval <= max(LEAST_SECONDS, min(stale, hang) / 2)
    assert pace.heartbeat >= max(heartbeat, pace.interval)


@given(st.integers(1, 400))
def test_all_reports_together_stay_about_what_they_may(count: int) -> None:
    """As far as a report may be old."""
    pace = pace_of(count, PLAIN)
    if pace.interval * 2 <= PLAIN.stale_seconds / 2:
        assert count / pace.interval <= REPORTS_A_SECOND


@given(st.integers(1, 2000))
def test_a_fleet_that_breathes_keeps_its_pace(count: int) -> None:
    pace = pace_of(count, PLAIN)
    for other in (count + 1, max(count // 2 + 1, count - 1), count):
        pace = kept_pace(pace, other, PLAIN)
    grown = kept_pace(pace, 2 * count + 2, PLAIN)
    assert kept_pace(grown, 2 * count + 1, PLAIN) == grown
    assert kept_pace(pace_of(10 * count, PLAIN), 1, PLAIN).interval <= 2 * LEAST_SECONDS


def test_a_small_fleet_is_heard_as_ever_and_a_large_one_twice_a_second() -> None:
    assert pace_of(16, PLAIN).interval == LEAST_SECONDS and pace_of(16, PLAIN).heartbeat == PLAIN.heartbeat_seconds
    assert pace_of(1024, PLAIN).interval == pace_of(1024, PLAIN).heartbeat == 0.4
