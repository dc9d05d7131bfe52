"""Slow periods of the machine: pacer processes notice when the same work suddenly takes longer.

`python -m bench.slow_periods PROCESSOR PARENT` is a pacer.
"""

import os
import signal
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

from simulation.results import percentile

_ROOT = Path(__file__).parents[1]
FIRST, NOT_FIRST = "first", "not first"
_SLEEP_SECONDS = 0.005
_WORK = range(350)  # about 30 us
_LATE_SECONDS = 0.002  # a shorter delay is a normal wake-up
_SLOW_TIMES = 2.5  # times the usual duration; cold caches alone take up to twice as long
_USUAL_PERCENT = 20  # the percentile that counts as usual
_SPAN_SECONDS = 0.05
"""A slow period disturbs a request that was sent less than this time before it, however long the request takes."""
_PATIENCE_SECONDS = 30.0  # limit for a pacer to start or to end

Interval = tuple[float, float]  # on the monotonic clock


class PacerFailed(RuntimeError):
    """A pacer did not start, did not end, or ended early."""


class Beat(NamedTuple):
    """One repetition of a pacer's work: when it was due, began and ended, on the monotonic clock."""

    due: float
    woken: float
    done: float


@dataclass
class SlowPeriods:
    intervals: list[Interval] = field(default_factory=list)  # disjoint, in order

    def meets(self, moment: float) -> bool:
        behind = bisect_right(self.intervals, moment, key=lambda interval: interval[1])
        return behind < len(self.intervals) and self.intervals[behind][0] < moment + _SPAN_SECONDS


@contextmanager
def record_slow_periods() -> Iterator[SlowPeriods | None]:
    processors = sorted(os.sched_getaffinity(0))
    with TemporaryDirectory(prefix="octet-slow_periods-") as folder, ExitStack() as stack:
        pacers = [stack.enter_context(_pacer(processor, Path(folder))) for processor in processors]
        if any(each.begun() != FIRST for each in pacers):
            yield None
            return
        slow_periods = SlowPeriods()
        yield slow_periods
        slow_periods.intervals += joined([interval for each in pacers for interval in slow_intervals(each.ended())])


def slow_intervals(beats: Sequence[Beat]) -> Iterator[Interval]:
    """Yield the slow intervals of one processor. A slow beat makes the whole time between its neighbours slow."""
    usual = percentile([beat.done - beat.woken for beat in beats], _USUAL_PERCENT)
    for before, beat, after in zip([beats[0], *beats], beats, [*beats[1:], beats[-1]], strict=False):
        if beat.woken - beat.due > _LATE_SECONDS:
            yield beat.due, beat.woken
        if beat.done - beat.woken > _SLOW_TIMES * usual:
            yield min(before.done, beat.due), max(after.woken, beat.done)


def joined(intervals: Sequence[Interval]) -> list[Interval]:
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
        end = time.monotonic() + _PATIENCE_SECONDS
        while not (output := self.notes.read_text()).endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise PacerFailed(f"a pacer did not start: {self.process.args!r}")
            time.sleep(0.01)
        return output.splitlines()[0]

    def ended(self) -> list[Beat]:
        self.process.terminate()
        try:
            code = self.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise PacerFailed(f"a pacer did not end: {self.process.args!r}") from None
        beats = [Beat(*map(float, line.split())) for line in self.notes.read_text().splitlines()[1:]]
        if code or not beats:
            raise PacerFailed(f"a pacer ended early with exit code {code}: {self.process.args!r}")
        return beats


@contextmanager
def _pacer(processor: int, folder: Path) -> Iterator[_Pacer]:
    notes = folder / str(processor)
    command = [sys.executable, "-m", "bench.slow_periods", str(processor), str(os.getpid())]
    with notes.open("w") as file, subprocess.Popen(command, cwd=_ROOT, stdout=file) as process:  # noqa: S603
        try:
            yield _Pacer(process, notes)
        finally:
            process.kill()


def run_pacer() -> None:
    """Alternate between sleep and a little constant work, with priority over all other processes on one processor.
    Print immediately whether it has that priority, and end if not. On SIGTERM, print a line for each repetition of the
    work. End without these lines if the parent is gone."""
    processor, parent = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates it
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    os.sched_setaffinity(0, {processor})
    if not comes_first():
        print(NOT_FIRST, flush=True)
        return
    print(FIRST, flush=True)
    beats = []
    done = time.monotonic()
    while not signals and os.getppid() == parent:
        due = done + _SLEEP_SECONDS
        time.sleep(max(0.0, due - time.monotonic()))
        woken = time.monotonic()
        for number in _WORK:
            number * number
        done = time.monotonic()
        beats.append((due, woken, done))
    if signals:
        print(*(f"{due} {woken} {done}" for due, woken, done in beats), sep="\n", flush=True)


def comes_first() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


if __name__ == "__main__":
    run_pacer()
