"""How long callers waited."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from random import Random

from bench.slow_periods import Interval, SlowPeriods, record_slow_periods
from simulation.results import percentile
from tests.faults.callers import Callers, Line
from tests.faults.figures import Figure
from tests.faults.history import Account, Golden, History

FLOOR = 0.1
"""Seconds."""
AGAINST = "relative"
"""What is usual is measured half before the fault and half after it: no fault makes the machine itself slower."""
Both = tuple[Sequence[Interval], Sequence[Interval]]
"""Waits as usual, and with the fault."""
_WHATEVER = "<= 2"
"""Bound of a ratio that slow periods of the machine may have caused."""


def against(after: float, before: float, *, long: bool) -> float:
    """How many times as long. In the short form, which shares its machine, a wait below FLOOR counts as that."""
    return after / max(before, 0.0 if long else FLOOR)


@contextmanager
def record_slow_periods_if(long: bool) -> Iterator[SlowPeriods | None]:
    """In the short form, which shares its machine with other tests, all waits count, and its bounds are wide."""
    with record_slow_periods() if long else nullcontext() as slow_periods:
        yield slow_periods


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of waits with a fault and without it."""

    row: int
    figure: Figure
    slow_periods: SlowPeriods | None
    """None: not known, and all waits count."""
    long: bool

    @property
    def where(self) -> str:
        return "" if self.slow_periods is None else ", outside slow periods"

    def put_lasting(self, before: History, after: History) -> None:
        """What a fault leaves behind would make it look harmless, where what is usual is measured on both sides of
        it."""
        usual, now = (undisturbed(waits(each.answered), self.slow_periods) for each in (before, after))
        longer = against(_part(now, 50), _part(usual, 50), long=self.long)
        self.figure(self.row, f"p50 TTFT afterwards, relative{self.where}", longer, "", "<= 1.2", short="<= 10")

    def put_longer(self, what: str, percent: int, usual: History, now: History, bound: str) -> None:
        """How many times as long as usual so many of a hundred wait at most."""
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
    """For the first token, of those that got one."""
    return [(each.began, each.first) for each in accounts if each.first is not None]


def undisturbed(intervals: Sequence[Interval], slow_periods: SlowPeriods | None) -> list[Interval]:
    """Those that began neither in a slow period nor shortly before one; all if slow periods were not recorded."""
    return [each for each in intervals if slow_periods is None or not slow_periods.meets(each[0])]


def seconds_of(intervals: Sequence[Interval]) -> list[float]:
    return [last - first for first, last in intervals]


async def heard_at(rate: float, router: Line, golden: Golden, seconds: float, seed: int) -> History:
    """What is heard when so many come in a second, for so long, whether those before are answered or not."""
    history = History(golden)
    async with Callers(router, history, Random(seed)).coming(repeat(1 / rate)):
        await asyncio.sleep(seconds)
    assert history.accounts
    return history


def by(history: History, answers: Callable[[str], bool]) -> History:
    """Those that such a replica answered."""
    mine = [each for each in history.answered if each.receipt is not None and answers(each.receipt.replica)]
    return History(history.golden, mine)
