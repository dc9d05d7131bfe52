"""The shortest script that still breaks a law."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.run import Lived, live
from tests.simulation.script import Script

_T = TypeVar("_T")
_MOST_RUNS = 200


def law_of(broken: str) -> str:
    """Without what it says of this one case."""
    return broken.partition(":")[0]


class Shrinker:
    """Delta debugging over requests and deeds; then everything that may go wrong by itself is left out, one by one. A
    shorter script counts where it breaks the same law."""

    def __init__(self, lived: Lived, most_runs: int = _MOST_RUNS, lives: Callable[[Script], Lived] = live) -> None:
        self._best = lived
        self._law = law_of(lived.broken)
        self._left = most_runs
        self._lives = lives

    def shortest(self) -> Lived:
        """The shortest that was found within so many runs; broken still."""
        before = -1
        while before != _size(self._best.script) and self._left > 0:
            before = _size(self._best.script)
            self._drop_deeds()
            self._drop_asks()
            while any(self._try(simpler) for simpler in _simpler(self._best.script)):
                pass
        return self._best

    def _drop_deeds(self) -> None:
        _minimal(self._best.script.deeds, lambda deeds: self._try(replace(self._best.script, deeds=deeds)))

    def _drop_asks(self) -> None:
        _minimal(self._best.script.asks, lambda asks: self._try(replace(self._best.script, asks=asks)))

    def _try(self, script: Script) -> bool:
        """Whether it breaks the same law; then it is the best."""
        if self._left <= 0:
            return False
        self._left -= 1
        lived = self._lives(script)
        if law_of(lived.broken) != self._law:
            return False
        self._best = lived
        return True


def _size(script: Script) -> int:
    return len(script.asks) + len(script.deeds) + len(script.setup.mishaps) + bool(script.setup.fault_rate)


def _minimal(items: Sequence[_T], works: Callable[[tuple[_T, ...]], bool]) -> None:
    """Leaves out ever smaller parts, as long as it works without them."""
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
    """The same with one thing less that goes wrong by itself."""
    setup = script.setup
    if setup.fault_rate:
        yield replace(script, setup=replace(setup, fault_rate=0.0))
    for point in setup.mishaps:
        rest = {other: rate for other, rate in setup.mishaps.items() if other != point}
        yield replace(script, setup=replace(setup, mishaps=rest))
