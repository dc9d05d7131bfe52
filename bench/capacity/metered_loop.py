"""The event loop of a simulation that also counts what every process costs this computer."""

from collections import defaultdict
from time import thread_time
from typing import Any

from bench.simulation.heap_loop import HeapLoop
from bench.simulation.process import Process


class MeteredLoop(HeapLoop):
    def __init__(self) -> None:
        super().__init__()
        self.spent: defaultdict[Process | None, float] = defaultdict(float)
        """Seconds, by process; None is for the callers."""

    def _run(self, due: Any) -> None:
        before = thread_time()
        super()._run(due)
        self.spent[due.process] += thread_time() - before
