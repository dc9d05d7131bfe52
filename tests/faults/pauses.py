"""When the machine stood still: processes that only sleep, one on each processor, were not woken in time. What they
were held up for is no doing of whatever is measured beside them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

ROOT = Path(__file__).parents[2]
Interval = tuple[float, float]
"""In seconds of the monotonic clock."""


@dataclass
class Pauses:
    """Known when the context of `noting_pauses` is over."""

    intervals: list[Interval] = field(default_factory=list)
    """Apart from each other, in their order."""

    def within(self, began: float, ended: float) -> float:
        """Seconds of this time in which one of the processors stood still."""
        return sum(max(0.0, min(ended, last) - max(began, first)) for first, last in self.intervals)


@contextmanager
def noting_pauses() -> Iterator[Pauses]:
    pauses = Pauses()
    with ExitStack() as stack:
        notes = [stack.enter_context(TemporaryFile("w+")) for _ in os.sched_getaffinity(0)]
        sleepers = [_sleeper(*each) for each in zip(sorted(os.sched_getaffinity(0)), notes, strict=True)]
        try:
            yield pauses
        finally:
            for sleeper in sleepers:
                sleeper.terminate()
            if {sleeper.wait() for sleeper in sleepers} != {-signal.SIGTERM}:
                raise RuntimeError("a sleeper ended by itself")
        pauses.intervals += joined([interval for each in notes for interval in _read(each)])


def joined(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time, no moment of it twice."""
    apart: list[Interval] = []
    for first, last in sorted(intervals):
        if apart and first <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(last, apart[-1][1]))
        else:
            apart.append((first, last))
    return apart


def _read(notes: IO[str]) -> Iterator[Interval]:
    """What it was writing when it was ended is not whole, and counts for nothing."""
    notes.seek(0)
    for line in notes:
        if line.endswith("\n"):
            due, woken = line.split()
            yield float(due), float(woken)


def _sleeper(processor: int, notes: IO[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "tests.faults.sleeper", str(processor)], cwd=ROOT, stdout=notes)
