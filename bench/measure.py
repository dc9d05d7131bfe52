"""Timing things beside each other: in turns, in one process, again and again."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from random import Random
from statistics import median
from time import perf_counter

from bench.record import Record

Work = Callable[[], object]

ENOUGH = 200
"""Samples from which on a 99th percentile is told: of fewer it is the worst, or next to it."""
_UNITS_A_SECOND = {"ns": 1e9, "µs": 1e6, "ms": 1e3}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to time. `ready()` is not timed: it brings about the state to start from and returns the work."""

    case: str
    metric: str
    unit: str
    """Starts with "ns", "µs" or "ms", and may go on as in "ns/block"."""
    ready: Callable[[], Work]
    operations: int = 1
    """How many the work does; the figure is the time of one."""
    system: str = "octet"


@dataclass(frozen=True, slots=True)
class Timing:
    subject: Subject
    samples: tuple[float, ...]
    """Time of one operation in the subject's unit, one sample a round."""

    def record(self, bench: str) -> Record:
        subject = self.subject
        return summary(self.samples, bench, subject.case, subject.metric, subject.unit, subject.system)

    def scaled(self, bench: str, metric: str, factor: float) -> Record:
        """The same samples as another metric of the same case."""
        samples = [sample * factor for sample in self.samples]
        return summary(samples, bench, self.subject.case, metric, self.subject.unit, self.subject.system)

    def ratio(self, base: "Timing", bench: str, case: str, metric: str) -> Record:
        """How many times the base this takes, round by round: what slows a whole round down cancels out."""
        samples = [mine / its for mine, its in zip(self.samples, base.samples, strict=True)]
        return summary(samples, bench, case, metric, "x", self.subject.system)


def interleave(subjects: Sequence[Subject], runs: int) -> list[Timing]:
    """Time every subject once a round, after a round that does not count."""
    rounds = [_round(subjects, number) for number in range(runs + 1)][1:]
    return [Timing(subject, samples) for subject, samples in zip(subjects, zip(*rounds, strict=True), strict=True)]


def summary(samples: Sequence[float], bench: str, case: str, metric: str, unit: str, system: str) -> Record:
    low, high = percentile(samples, 10), percentile(samples, 90)
    return Record(bench, case, system, metric, unit, median(samples), low, high, len(samples))


def percentile(samples: Sequence[float], percent: int) -> float:
    """By nearest rank: always one of the samples."""
    return sorted(samples)[max(0, ceil(len(samples) * percent / 100) - 1)]


def _round(subjects: Sequence[Subject], number: int) -> list[float]:
    """In an order of its own: nobody always comes first, or always behind the same neighbour."""
    order = Random(number).sample(range(len(subjects)), len(subjects))
    with _no_collector():
        samples = {i: _time(subjects[i]) for i in order}
    return [samples[i] for i in range(len(subjects))]


def _time(subject: Subject) -> float:
    work = subject.ready()
    start = perf_counter()
    result = work()
    seconds = perf_counter() - start
    del result  # kept until here so that throwing it away is not timed
    return seconds / subject.operations * _UNITS_A_SECOND[subject.unit.partition("/")[0]]


@contextmanager
def _no_collector() -> Iterator[None]:
    """Cyclic garbage is collected between rounds, not in the middle of someone's time."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
