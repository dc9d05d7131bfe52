"""Find the shortest script that still breaks a law."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.run import RunResult, run_script
from tests.simulation.script import Script

_T = TypeVar("_T")
_MOST_RUNS = 200


def law_of(broken: str) -> str:
    """Return the law without the details of the case."""
    return broken.partition(":")[0]


class Shrinker:
    """Finds a shorter script that breaks the same law, by delta debugging: removes scripted faults and requests, then
    sources of random faults."""

    def __init__(
        self, result: RunResult, most_runs: int = _MOST_RUNS, run: Callable[[Script], RunResult] = run_script
    ) -> None:
        self._best = result
        self._law = law_of(result.broken)
        self._left = most_runs
        self._run = run

    def shortest(self) -> RunResult:
        """Return the run of the shortest script found within `most_runs` runs. It still breaks the same law."""
        before = -1
        while before != _size(self._best.script) and self._left > 0:
            before = _size(self._best.script)
            self._drop_faults()
            self._drop_requests()
            while any(self._try(simpler) for simpler in _simpler(self._best.script)):
                pass
        return self._best

    def _drop_faults(self) -> None:
        _minimal(self._best.script.faults, lambda faults: self._try(replace(self._best.script, faults=faults)))

    def _drop_requests(self) -> None:
        _minimal(self._best.script.asks, lambda asks: self._try(replace(self._best.script, asks=asks)))

    def _try(self, script: Script) -> bool:
        """Return whether the script breaks the same law, and keep its result if so. Return False if the limit on runs
        is reached."""
        if self._left <= 0:
            return False
        self._left -= 1
        result = self._run(script)
        if law_of(result.broken) != self._law:
            return False
        self._best = result
        return True


def _size(script: Script) -> int:
    return len(script.asks) + len(script.faults) + len(script.setup.fault_points) + bool(script.setup.fault_rate)


def _minimal(items: Sequence[_T], works: Callable[[tuple[_T, ...]], bool]) -> None:
    """Call `works` with smaller and smaller parts of the items. The last call that returns True has the smallest part
    found."""
    kept = tuple(items)
    if kept and works(()):
        return
    size = len(kept)
    while size > 0:
        start = 0
        while start < len(kept):
            without = kept[:start] + kept[start + size :]
            if len(kept) > 1 and works(without):
                kept = without
            else:
                start += size
        size //= 2


def _simpler(script: Script) -> Iterator[Script]:
    """Yield copies of the script that each lack one source of random faults."""
    setup = script.setup
    if setup.fault_rate:
        yield replace(script, setup=replace(setup, fault_rate=0.0))
    for point in setup.fault_points:
        rest = {other: rate for other, rate in setup.fault_points.items() if other != point}
        yield replace(script, setup=replace(setup, fault_points=rest))
