"""The router's store in memory, with its thread played by the event loop."""

from functools import partial
from typing import Any, TypeVar

from bench.simulation.clock import LoopClock, Wall
from bench.simulation.heap_loop import HeapLoop
from octet.config.ensemble import Ensemble
from octet.store import Store
from octet.store.job import Job
from octet.store.sqlite import SqliteMemory
from octet.store.worker import Worker

T = TypeVar("T")
_SECONDS = 1e-3
"""That a commit takes."""


def new_store(ensemble: Ensemble, loop: HeapLoop, wall: Wall) -> Store:
    longest = max(ensemble.correctness.window, ensemble.escalation.sustain)
    return Store(
        SqliteMemory(),
        ensemble.store,
        ensemble.name,
        longest,
        clock=LoopClock(loop),
        wall=wall.now,
        worker=partial(_LoopWorker, loop),
    )


class _LoopWorker(Worker):
    """One job after the other, each a moment after the one before."""

    def __init__(self, loop: HeapLoop, *given: Any) -> None:
        super().__init__(*given)
        self._heap = loop
        self._waiting = 0
        self._free_at = 0.0

    def start(self) -> None:
        """There is no thread."""

    def stop(self, stopped: Any) -> None:
        self._heap.call_at(self._turn(), self._close, stopped)

    def submit(self, job: Job[T]) -> None:
        self._waiting += 1
        self._heap.call_at(self._turn(), self._do, job)

    @property
    def num_waiting(self) -> int:
        return self._waiting

    def _turn(self) -> float:
        self._free_at = max(self._free_at, self._heap.time()) + _SECONDS
        return self._free_at

    def _do(self, job: Job[T]) -> None:
        self._waiting -= 1
        if job.begin():
            self._perform(job)

    def _close(self, stopped: Any) -> None:
        self._disconnect()
        stopped()
