"""When the machine stood still: processes that only sleep, one on each processor, were not woken in time. What they
were held up for is no doing of whatever is measured beside them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

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
        notes = [stack.enter_context(_sleeping(processor)) for processor in sorted(os.sched_getaffinity(0))]
        yield pauses
        pauses.intervals += joined([interval for each in notes for interval in _read(each)])


@contextmanager
def _sleeping(processor: int) -> Iterator[Path]:
    """What one notes. It sleeps already."""
    with TemporaryDirectory(prefix="octet-pauses-") as folder:
        notes = Path(folder) / "notes"
        command = [sys.executable, "-m", "tests.faults.sleeper", str(processor)]
        with notes.open("w") as file, subprocess.Popen(command, cwd=ROOT, stdout=file) as sleeper:
            try:
                while not notes.stat().st_size:
                    if sleeper.poll() is not None:
                        raise RuntimeError("the sleeper did not begin")
                    time.sleep(0.01)
                yield notes
            finally:
                sleeper.kill()


def joined(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time, no moment of it twice."""
    apart: list[Interval] = []
    for first, last in sorted(intervals):
        if apart and first <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(last, apart[-1][1]))
        else:
            apart.append((first, last))
    return apart


def _read(notes: Path) -> Iterator[Interval]:
    """What is being written is not whole, and counts for nothing."""
    for line in notes.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            due, woken = line.split()
            yield float(due), float(woken)
