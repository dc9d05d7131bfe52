"""With more replicas, each reports less often, but always before its last report is stale."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import DispatchConfig
from router.dispatch.replicas.fleet import MIN_INTERVAL_SECONDS, REPORTS_PER_SECOND, report_intervals, stable_intervals

PLAIN = DispatchConfig()
COUNTS = st.integers(0, 5000)


@given(COUNTS, COUNTS)
def test_more_replicas_never_report_more_often(few: int, many: int) -> None:
    few, many = sorted((few, many))
    assert report_intervals(few, PLAIN).interval <= report_intervals(many, PLAIN).interval
    assert report_intervals(few, PLAIN).heartbeat <= report_intervals(many, PLAIN).heartbeat


@given(COUNTS, st.floats(0.05, 5), st.floats(0.2, 20), st.floats(0.01, 0.1))
def test_two_reports_arrive_before_one_is_stale(count: int, stale: float, hang: float, heartbeat: float) -> None:
    pace = report_intervals(count, replace(PLAIN, stale_seconds=stale, hang_seconds=hang, heartbeat_seconds=heartbeat))
    assert pace.interval <= max(MIN_INTERVAL_SECONDS, min(stale, hang) / 2)
    assert pace.heartbeat >= max(heartbeat, pace.interval)


@given(st.integers(1, 400))
def test_all_reports_together_stay_within_their_rate(count: int) -> None:
    """The rate may be exceeded only to keep reports from becoming stale."""
    pace = report_intervals(count, PLAIN)
    if pace.interval * 2 <= PLAIN.stale_seconds / 2:
        assert count / pace.interval <= REPORTS_PER_SECOND


@given(st.integers(1, 2000))
def test_small_changes_of_the_fleet_keep_the_intervals(count: int) -> None:
    pace = report_intervals(count, PLAIN)
    for other in (count + 1, max(count // 2 + 1, count - 1), count):
        pace = stable_intervals(pace, other, PLAIN)
    grown = stable_intervals(pace, 2 * count + 2, PLAIN)
    assert stable_intervals(grown, 2 * count + 1, PLAIN) == grown
    assert stable_intervals(report_intervals(10 * count, PLAIN), 1, PLAIN).interval <= 2 * MIN_INTERVAL_SECONDS


def test_report_interval_grows_with_the_fleet() -> None:
    assert (
        report_intervals(16, PLAIN).interval == MIN_INTERVAL_SECONDS
        and report_intervals(16, PLAIN).heartbeat == PLAIN.heartbeat_seconds
    )
    assert report_intervals(1024, PLAIN).interval == report_intervals(1024, PLAIN).heartbeat == 0.4
