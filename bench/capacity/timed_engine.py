"""An engine that only takes its time: for questions of how long, not of what."""

from collections.abc import Iterable

from bench.simulation.replica import ReplicaSpec
from octet.clock import Clock
from specialist.engines.base import Completion
from specialist.engines.sim import CostModel, FaultSource
from specialist.step import Rollback, Step, StepOutcome

TOKEN = 1
"""The only one it ever says; no end of anything."""


class TimedEngine:
    def __init__(self, cost: CostModel, clock: Clock) -> None:
        self._cost = cost
        self._clock = clock
        self._adapters: tuple[str, ...] = ()

    def run(self, step: Step) -> Iterable[Completion]:
        self._clock.sleep(self._cost.seconds(step, switched=step.adapters != self._adapters))
        self._adapters = step.adapters
        return [Completion(step, StepOutcome(tuple((TOKEN,) * row.num_samples for row in step.rows)))]

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        """Nothing was written."""


def timed_engine(spec: ReplicaSpec, clock: Clock, _: FaultSource) -> TimedEngine:
    return TimedEngine(spec.cost, clock)
