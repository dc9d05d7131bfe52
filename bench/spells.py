"""Spells in which the machine was not itself: processes that sleep and do a little work, one on each processor, were
not woken in time, or the same work took them much longer. That is no doing of whatever is measured beside them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.measure import percentile

_ROOT = Path(__file__).parents[1]
_LATE_SECONDS = 0.002
"""Less is how a processor wakes."""
_SLOW = 2.5
"""Times the usual. With other processes' data in the caches it takes up to twice as long."""
_USUAL = 20
"""Percentile of what the work takes."""

Interval = tuple[float, float]
"""In seconds of the monotonic clock."""


class Beat(NamedTuple):
    """Of a pacer."""

    due: float
    woken: float
    done: float


@dataclass
class Spells:
    """Known when the context of `noting_spells` is over. None where pacers may not come before other processes."""

    intervals: list[Interval] = field(default_factory=list)
    """Apart from each other, in their order."""

    def within(self, began: float, ended: float) -> float:
        """Seconds of this time in which one of the processors stood still or was slow."""
        return sum(max(0.0, min(ended, last) - max(began, first)) for first, last in self.intervals)


@contextmanager
def noting_spells() -> Iterator[Spells]:
    spells = Spells()
    with ExitStack() as stack:
        notes = [stack.enter_context(_pacing(processor)) for processor in sorted(os.sched_getaffinity(0))]
        yield spells
        spells.intervals += joined([interval for each in notes for interval in spells_of(_read(each))])


def spells_of(beats: Sequence[Beat]) -> Iterator[Interval]:
    """Of one processor. A beat that was slow speaks for the time since the one before and until the one after."""
    if not beats:
        return
    usual = percentile([beat.done - beat.woken for beat in beats], _USUAL)
    for before, beat, after in zip([beats[0], *beats], beats, [*beats[1:], beats[-1]], strict=False):
        if beat.woken - beat.due > _LATE_SECONDS:
            yield beat.due, beat.woken
        if beat.done - beat.woken > _SLOW * usual:
            yield min(before.done, beat.due), max(after.woken, beat.done)


def joined(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time, no moment of it twice."""
    apart: list[Interval] = []
    for first, last in sorted(intervals):
        if apart and first <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(last, apart[-1][1]))
        else:
            apart.append((first, last))
    return apart


@contextmanager
def _pacing(processor: int) -> Iterator[Path]:
    """What one notes. It has begun already."""
    with TemporaryDirectory(prefix="octet-spells-") as folder:
        notes = Path(folder) / "notes"
        command = [sys.executable, "-m", "bench.pacer", str(processor)]
        with notes.open("w") as file, subprocess.Popen(command, cwd=_ROOT, stdout=file) as pacer:  # noqa: S603
            try:
                while not notes.stat().st_size:
                    if pacer.poll() is not None:
                        raise RuntimeError("the pacer did not begin")
                    time.sleep(0.01)
                yield notes
            finally:
                pacer.kill()


def _read(notes: Path) -> list[Beat]:
    """What is being written is not whole, and counts for nothing."""
    lines = notes.read_text().splitlines(keepends=True)
    return [Beat(*map(float, line.split())) for line in lines[1:] if line.endswith("\n")]
