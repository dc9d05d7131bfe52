"""How long callers waited."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import repeat
from math import ceil
from random import Random

from bench.spells import Interval, Spells
from tests.faults.callers import Callers, Line
from tests.faults.figures import Figure
from tests.faults.history import Account, Golden, History

FLOOR = 0.1
"""Seconds."""
AGAINST = "against before and after"
"""What is usual is measured half before the fault and half after it: no fault makes the machine itself slower."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so many do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def against(after: float, before: float, *, long: bool) -> float:
    """How many times as long. In the short form, which shares its machine, a wait below FLOOR counts as that."""
    return after / max(before, 0.0 if long else FLOOR)


def put_lasting(row: int, before: History, after: History, spells: Spells, figure: Figure, *, long: bool) -> None:
    """What a fault leaves behind would make it look harmless, where what is usual is measured on both sides of it."""
    p50s = [percentile(waited(each.answered, spells), 0.5) for each in (before, after)]
    figure(row, "p50 TTFT after it, against before", against(p50s[1], p50s[0], long=long), "", "<= 1.2", short="<= 10")


def waited(accounts: Sequence[Account], spells: Spells) -> list[float]:
    """Seconds to the first token, of those that got one while the machine was itself."""
    return itself([(each.began, each.first) for each in accounts if each.first is not None], spells)


def itself(waits: Sequence[Interval], spells: Spells) -> list[float]:
    """Seconds of those in which the machine was."""
    seconds = [last - first for first, last in waits if not spells.within(first, last)]
    assert len(seconds) > len(waits) / 3, "this machine is hardly ever itself"
    return seconds


async def heard_at(rate: float, router: Line, golden: Golden, seconds: float, seed: int) -> History:
    """What is heard when so many come in a second, for so long, whether those before are answered or not."""
    history = History(golden)
    async with Callers(router, history, Random(seed)).coming(repeat(1 / rate)):
        await asyncio.sleep(seconds)
    assert history.accounts
    return history


def by(accounts: Sequence[Account], answers: Callable[[str], bool]) -> list[Account]:
    """Those that such a replica answered."""
    return [each for each in accounts if each.receipt is not None and answers(each.receipt.replica)]
