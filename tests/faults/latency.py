"""Latencies that callers measure, with and without a fault."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from random import Random

from bench.slow_periods import Interval, SlowPeriods, record_slow_periods
from simulation.results import percentile
from tests.faults.callers import Callers, RouterClient
from tests.faults.figures import Figure
from tests.faults.history import Account, Golden, History

FLOOR = 5.0
"""Seconds. In the short form, a baseline latency below this value counts as this value, so that only a hang is ten
times longer: other tests slow the machine down."""
AGAINST = "relative"
"""Marks a figure as a ratio to the baseline. Half of the baseline is measured before and half after the fault, because
the machine's speed drifts."""
Both = tuple[Sequence[Interval], Sequence[Interval]]
"""Latencies without the fault, and with it."""
_WHATEVER = "<= 2"
"""The bound on a ratio that includes slow periods of the machine."""


def against(after: float, before: float, *, long: bool) -> float:
    """Return the ratio of a latency to its baseline. In the short form, a baseline below FLOOR counts as FLOOR."""
    return after / max(before, 0.0 if long else FLOOR)


@contextmanager
def record_slow_periods_if(long: bool) -> Iterator[SlowPeriods | None]:
    """Record the machine's slow periods if `long`. The short form of the tests counts all latencies and has wide bounds
    instead, because it shares its machine with other tests."""
    with record_slow_periods() if long else nullcontext() as slow_periods:
        yield slow_periods


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares latencies with and without a fault and records the ratios."""

    row: int
    figure: Figure
    slow_periods: SlowPeriods | None
    """Slow periods of the machine, or None if they were not recorded."""
    long: bool

    @property
    def where(self) -> str:
        return "" if self.slow_periods is None else ", outside slow periods"

    def put_lasting(self, before: History, after: History) -> None:
        """Record how much slower the baseline is after the fault than before it, and check the bound. A slow baseline
        would hide the effect of the fault."""
        usual, now = (undisturbed(waits(each.answered), self.slow_periods) for each in (before, after))
        longer = against(_part(now, 50), _part(usual, 50), long=self.long)
        self.figure(self.row, f"p50 TTFT afterwards, relative{self.where}", longer, "", "<= 1.2", short="<= 10")

    def put_longer(self, what: str, percent: int, usual: History, now: History, bound: str) -> None:
        """Record the ratio of a latency percentile under the fault (`now`) to the same percentile without it
        (`usual`)."""
        both = waits(usual.answered), waits(now.answered)
        self._put_ratio(f"{what}, {AGAINST}{self.where}", percent, both, self.slow_periods, bound)
        if self.slow_periods is not None:
            self._put_ratio(f"{what}, {AGAINST}, slow periods included", percent, both, None, _WHATEVER)
            num_left = sum(len(undisturbed(each, self.slow_periods)) for each in both)
            left_out = 1 - num_left / sum(len(each) for each in both)
            self.figure(self.row, f"{what}: share of waits in slow periods", left_out, "", "< 0.67")

    def _put_ratio(self, what: str, percent: int, both: Both, slow_periods: SlowPeriods | None, bound: str) -> None:
        usual, now = (_part(undisturbed(each, slow_periods), percent) for each in both)
        self.figure(self.row, what, against(now, usual, long=self.long), "", bound, short="<= 10")


def _part(intervals: Sequence[Interval], percent: int) -> float:
    return percentile(seconds_of(intervals), percent)


def waits(accounts: Sequence[Account]) -> list[Interval]:
    """Return when each request began and when it got its first token, for requests that got a token."""
    return [(each.began, each.first) for each in accounts if each.first is not None]


def undisturbed(intervals: Sequence[Interval], slow_periods: SlowPeriods | None) -> list[Interval]:
    """Return the requests that began neither in a slow period nor shortly before one, or all of them if slow periods
    were not recorded."""
    return [each for each in intervals if slow_periods is None or not slow_periods.meets(each[0])]


def seconds_of(intervals: Sequence[Interval]) -> list[float]:
    return [last - first for first, last in intervals]


async def call_at_rate(rate: float, router: RouterClient, golden: Golden, seconds: float, seed: int) -> History:
    """Send requests at a fixed rate for `seconds`, whether or not earlier ones have ended. Return their history."""
    history = History(golden)
    async with Callers(router, history, Random(seed)).coming(repeat(1 / rate)):
        await asyncio.sleep(seconds)
    assert history.accounts
    return history


def answered_by(history: History, answers: Callable[[str], bool]) -> History:
    """Return the part of the history that the matching replicas answered."""
    mine = [each for each in history.answered if each.receipt is not None and answers(each.receipt.replica)]
    return History(history.golden, mine)
