"""What goes wrong by itself in a run: points in production code, and steps of engines."""

from collections import Counter
from random import Random
from typing import get_args

from bench.simulation.court import Court
from bench.simulation.script import Setup
from specialist.engines.sim import Fault, FaultKind
from specialist.step import Step

_FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)


class Chances:
    """What goes wrong by itself, drawn from the seed; nothing before everything is up, and nothing at the end."""

    def __init__(self, random: Random, setup: Setup) -> None:
        self._random = random
        self._setup = setup
        self._armed = False
        self._fired: Counter[str] = Counter()

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def decide(self, point: str) -> bool:
        rate = self._setup.mishaps.get(point)
        if rate is None or not self._armed or self._random.random() >= rate:
            return False
        self._fired[point] += 1
        return True

    def fault(self, step: Step) -> Fault | None:
        if not self._armed or not self._setup.fault_rate or self._random.random() >= self._setup.fault_rate:
            return None
        kind = self._random.choice(_FAULTS)
        self._fired[kind] += 1
        return Fault(kind, self._random.randrange(len(step.rows)), self._random.random() < 0.5)

    def tell(self, court: Court) -> None:
        for point, count in self._fired.items():
            court.seen[f"mishap: {point}"] += count
