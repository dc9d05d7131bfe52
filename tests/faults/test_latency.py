"""Latencies are compared outside the machine's slow periods."""

from dataclasses import dataclass, field

import grpc
import pytest

from bench.slow_periods import SlowPeriods
from tests.faults.history import Account, History, Question
from tests.faults.latency import Comparison


@dataclass
class Figures:
    put: dict[str, float] = field(default_factory=dict)

    def __call__(self, row: int, what: str, value: float, unit: str, bound: str, *, short: str = "") -> None:
        self.put[what] = value


def history(*waits: tuple[float, float]) -> History:
    accounts = [
        Account("r", Question("writer", "", 1), began=began, first=began + seconds, codes=[grpc.StatusCode.OK])
        for began, seconds in waits
    ]
    return History({}, accounts)


USUAL = history((0, 0.1), (1, 0.1))
SLOW = history((10, 0.2), (11, 0.9), (12, 0.2), (13, 0.2))
"""One of these requests falls into a slow period."""
SLOW_PERIODS = SlowPeriods([(10.9, 11.1)])


def test_requests_in_a_slow_period_are_reported_separately() -> None:
    figures = Figures()
    comparison = Comparison(3, figures, SLOW_PERIODS, long=True)
    comparison.put_longer("waits", 100, USUAL, SLOW, "<= 1.2")
    assert figures.put == {
        "waits, relative, outside slow periods": pytest.approx(2),
        "waits, relative, slow periods included": pytest.approx(9),
        "waits: share of waits in slow periods": pytest.approx(1 / 6),
    }


def test_all_count_where_slow_periods_are_unknown() -> None:
    figures = Figures()
    Comparison(3, figures, None, long=True).put_longer("waits", 100, USUAL, SLOW, "<= 1.2")
    assert figures.put == {"waits, relative": pytest.approx(9)}


def test_durations_are_compared_in_the_same_way() -> None:
    figures = Figures()
    Comparison(3, figures, SLOW_PERIODS, long=True).put_lasting(USUAL, history((10, 0.3), (11, 0.02)))
    assert figures.put == {"p50 TTFT afterwards, relative, outside slow periods": pytest.approx(3)}


def test_a_request_that_a_later_slow_period_delays_counts() -> None:
    """If such requests were left out, slow answers would be left out more often than fast ones, because a slow period
    is more likely to begin during a slow answer."""
    figures = Figures()
    Comparison(3, figures, SLOW_PERIODS, long=True).put_lasting(USUAL, history((10, 5.0)))
    assert figures.put == {"p50 TTFT afterwards, relative, outside slow periods": pytest.approx(50)}
