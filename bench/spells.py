"""Spells in which the machine was not itself: processes that sleep and do a little work, one on each processor, were
not woken in time, or the same work took them much longer. That is no doing of whatever is measured beside them. Any
processor's spell is the machine's: where there are many, there may be hardly a moment without one."""

import os
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.measure import percentile
from bench.pacer import FIRST

_ROOT = Path(__file__).parents[1]
_LATE_SECONDS = 0.002
"""Less is how a processor wakes."""
_SLOW_TIMES = 2.5
"""The usual. With other processes' data in the caches it takes up to twice as long."""
_USUAL_PERCENT = 20
"""Of the beats are as fast as usual, or faster."""
_SPAN_SECONDS = 0.05
"""What is asked at a moment meets a spell within so long from then, or it does not, however long it takes itself:
else slow answers would be left out more often than fast ones."""
_PATIENCE_SECONDS = 30.0
"""For a pacer to begin or to end."""

Interval = tuple[float, float]
"""In seconds of the monotonic clock."""


class PacerFailed(RuntimeError):
    """Nobody knows whether the machine was itself."""


class Beat(NamedTuple):
    """Of a pacer."""

    due: float
    woken: float
    done: float


@dataclass
class Spells:
    """Known when the context of `noting_spells` is over."""

    intervals: list[Interval] = field(default_factory=list)
    """Apart from each other, in their order."""

    def meets(self, moment: float) -> bool:
        """Whether what begins then does so in a spell, or shortly before one."""
        behind = bisect_right(self.intervals, moment, key=lambda interval: interval[1])
        return behind < len(self.intervals) and self.intervals[behind][0] < moment + _SPAN_SECONDS


@contextmanager
def noting_spells() -> Iterator[Spells | None]:
    """None where pacers may not come before all other processes. Raises PacerFailed."""
    processors = sorted(os.sched_getaffinity(0))
    with TemporaryDirectory(prefix="octet-spells-") as folder, ExitStack() as stack:
        pacers = [stack.enter_context(_pacer(processor, Path(folder))) for processor in processors]
        if any(each.begun() != FIRST for each in pacers):
            yield None
            return
        spells = Spells()
        yield spells
        spells.intervals += joined([interval for each in pacers for interval in spells_of(each.ended())])


def spells_of(beats: Sequence[Beat]) -> Iterator[Interval]:
    """Of one processor. A beat that was slow speaks for the time since the one before and until the one after."""
    usual = percentile([beat.done - beat.woken for beat in beats], _USUAL_PERCENT)
    for before, beat, after in zip([beats[0], *beats], beats, [*beats[1:], beats[-1]], strict=False):
        if beat.woken - beat.due > _LATE_SECONDS:
            yield beat.due, beat.woken
        if beat.done - beat.woken > _SLOW_TIMES * usual:
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


@dataclass(frozen=True, slots=True)
class _Pacer:
    process: subprocess.Popen[bytes]
    notes: Path

    def begun(self) -> str:
        """What it says first. Raises PacerFailed."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not (said := self.notes.read_text()).endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise PacerFailed(f"a pacer did not begin: {self.process.args!r}")
            time.sleep(0.01)
        return said.splitlines()[0]

    def ended(self) -> list[Beat]:
        """All it has to say. Raises PacerFailed."""
        self.process.terminate()
        try:
            code = self.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise PacerFailed(f"a pacer did not end: {self.process.args!r}") from None
        beats = [Beat(*map(float, line.split())) for line in self.notes.read_text().splitlines()[1:]]
        if code or not beats:
            raise PacerFailed(f"a pacer ended before its time, with {code}: {self.process.args!r}")
        return beats


@contextmanager
def _pacer(processor: int, folder: Path) -> Iterator[_Pacer]:
    notes = folder / str(processor)
    command = [sys.executable, "-m", "bench.pacer", str(processor), str(os.getpid())]
    with notes.open("w") as file, subprocess.Popen(command, cwd=_ROOT, stdout=file) as process:  # noqa: S603
        try:
            yield _Pacer(process, notes)
        finally:
            process.kill()
