"""Timing of code in interleaved rounds, and tables and files of the measured figures."""

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter
from typing import NamedTuple

from simulation.results import BenchRecord, Result, format_figure, format_table, summary, write_atomically

Work = Callable[[], object]
ENOUGH = 200  # fewest samples for a 99th percentile
_UNITS_A_SECOND = {"ns": 1e9, "µs": 1e6, "ms": 1e3}
Targets = Mapping[tuple[str, str], str]  # the bound of a figure, by case and metric
Say = Callable[[str], None]  # prints a line


def format_json_lines(records: Iterable[BenchRecord]) -> str:
    """Return one JSON object per line."""
    return "".join(json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records)


def write_records(path: Path, records: Iterable[BenchRecord]) -> None:
    write_atomically(path, format_json_lines(records).encode())


@dataclass(frozen=True, slots=True)
class Subject:
    """Code to time. `ready()` prepares the state and returns the work; only the work is timed."""

    case: str
    metric: str
    unit: str  # starts with "ns", "µs" or "ms", and may continue as in "ns/block"
    ready: Callable[[], Work]
    operations: int = 1  # how many operations the work does; the figure is the time of one
    system: str = "octet"


def _time(subject: Subject) -> float:
    work = subject.ready()
    start = perf_counter()
    result = work()
    seconds = perf_counter() - start
    del result  # kept until here, so that freeing it is not timed
    return seconds / subject.operations * _UNITS_A_SECOND[subject.unit.partition("/")[0]]


@contextmanager
def no_collector() -> Iterator[None]:
    """Collect cyclic garbage now but not inside the block: the pauses would count as latency."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Figure(NamedTuple):
    metric: str
    unit: str
    value: float


class FigureKey(NamedTuple):
    case: str
    system: str
    metric: str


class Board:
    """Collects samples by round, and summarises them as records."""

    def __init__(self, bench: str, systems: Sequence[str] = ("octet",)) -> None:
        self._bench, self._systems = bench, list(systems)
        self._samples: dict[FigureKey, dict[int, float]] = {}
        self._units: dict[FigureKey, str] = {}

    def add(self, number: int, case: str, system: str, figures: Iterable[tuple[str, str, float]]) -> None:
        """Add the figures of round `number`, each as (metric, unit, value)."""
        for metric, unit, value in figures:
            key = FigureKey(case, system, metric)
            self._units[key] = unit
            self._samples.setdefault(key, {})[number] = value

    def records(self) -> list[BenchRecord]:
        """Return the records, ordered by case, then by metric, then by system."""
        cases = list(dict.fromkeys(key.case for key in self._samples))
        metrics = list(dict.fromkeys(key.metric for key in self._samples))

        def place(key: FigureKey) -> tuple[int, int, int]:
            return cases.index(key.case), metrics.index(key.metric), self._systems.index(key.system)

        return [
            summary(list(self._samples[key].values()), self._bench, key.case, key.metric, self._units[key], key.system)
            for key in sorted(self._samples, key=place)
        ]

    def scaled(self, key: FigureKey, metric: str, factor: float) -> BenchRecord:
        """Return the samples, multiplied by the factor, as another metric of the same case."""
        samples = [sample * factor for sample in self._samples[key].values()]
        return summary(samples, self._bench, key.case, metric, self._units[key], key.system)

    def ratio(self, mine: FigureKey, base: FigureKey, case: str) -> Iterator[BenchRecord]:
        """Yield the ratio of `mine` to `base`, taken per round, so that the slowness of a whole round cancels out."""
        ours, theirs = self._samples.get(mine, {}), self._samples.get(base, {})
        samples = [value / theirs[number] for number, value in ours.items() if number in theirs]
        if samples:
            yield summary(samples, self._bench, case, mine.metric, "x", mine.system)


def interleave(bench: str, subjects: Sequence[Subject], runs: int) -> Board:
    """Time every subject once per round, in a changing order. The first round is a warm-up and does not count."""
    board = Board(bench, ("octet", "limit"))
    for number in range(runs + 1):
        with no_collector():
            samples = {subject: _time(subject) for subject in Random(number).sample(subjects, len(subjects))}
        for subject in subjects if number else ():
            board.add(number, subject.case, subject.system, [(subject.metric, subject.unit, samples[subject])])
    return board


@dataclass(slots=True)
class Findings:
    """The results of a bench with peers, and the peers that were left out."""

    say: Say
    records: list[BenchRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # stored in the result, such as the settings of each system
    failures: list[str] = field(default_factory=list)  # already printed

    def fail(self, why: str) -> None:
        self.say(why)
        self.failures.append(why)
        self.notes.append(f"left out: {why}")


def table_of_spreads(records: Iterable[BenchRecord], targets: Targets) -> str:
    """Format a line for each record, with its spread and its target."""
    header = ("case", "system", "metric", "median", "p10", "p90", "unit", "runs", "target")
    rows = [
        (
            record.case,
            record.system,
            record.metric,
            *map(format_figure, (record.value, record.low, record.high)),
            record.unit,
            str(record.runs),
            targets.get((record.case, record.metric), "") if record.system == "octet" else "",
        )
        for record in records
    ]
    return format_table([header], rows, "<<<>>><><")


def table_by_metric(records: Sequence[BenchRecord]) -> str:
    """Format a line for each case and a column for each metric."""
    metrics = list(dict.fromkeys((record.metric, record.unit) for record in records))
    cells = {(record.case, record.system, record.metric): format_figure(record.value) for record in records}
    rows = [
        (case, system, *(cells.get((case, system, metric), "") for metric, _ in metrics))
        for case, system in dict.fromkeys((record.case, record.system) for record in records)
    ]
    headers = [("case", "system", *(metric for metric, _ in metrics)), ("", "", *(unit for _, unit in metrics))]
    return format_table(headers, rows, "<<" + ">" * len(metrics))


class ResultUnreadable(ValueError):
    """A file is not a result, or is a result of an unsupported version."""


def read_result(path: Path) -> Result:
    import msgspec  # a machine that only measures needs none

    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError as error:
        raise ResultUnreadable(f"{path}: not a result of a bench ({error})") from error
