"""Samples of many systems, round by round, and the records they come to."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bench.engine_jobs import Figure
from bench.measure import summary
from bench.record import Record

BENCH = "engine"


class Key(NamedTuple):
    case: str
    system: str
    metric: str


class Board:
    def __init__(self, systems: Sequence[str]) -> None:
        """All there can be, in the order they are shown in."""
        self._systems = list(systems)
        self._samples: dict[Key, dict[int, float]] = {}
        self._units: dict[Key, str] = {}

    def add(self, number: int, case: str, system: str, figures: Iterable[Figure]) -> None:
        """What round `number` gave."""
        for metric, unit, value in figures:
            key = Key(case, system, metric)
            self._units[key] = unit
            self._samples.setdefault(key, {})[number] = value

    def records(self) -> Iterator[Record]:
        """One a key; a case's keys stand together, a metric's systems beside each other."""
        for key in sorted(self._samples, key=self._place_of()):
            samples = list(self._samples[key].values())
            yield summary(samples, BENCH, key.case, key.metric, self._units[key], key.system)

    def _place_of(self) -> Callable[[Key], tuple[int, int, int]]:
        cases = list(dict.fromkeys(key.case for key in self._samples))
        metrics = list(dict.fromkeys(key.metric for key in self._samples))
        return lambda key: (cases.index(key.case), metrics.index(key.metric), self._systems.index(key.system))

    def ratio(self, mine: Key, base: Key, case: str) -> Iterator[Record]:
        """Mine over the base in every round that has both; nothing when none has."""
        ours, theirs = self._samples.get(mine, {}), self._samples.get(base, {})
        samples = [value / theirs[number] for number, value in ours.items() if number in theirs]
        if samples:
            yield summary(samples, BENCH, case, mine.metric, "x", mine.system)
