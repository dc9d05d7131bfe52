"""Carries out the faults of a script."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import get_args

from octet.rpc.memory import MemoryUsage
from specialist.engines.sim.engine import FaultKind, InjectedFault
from specialist.scheduling.step import Step
from tests.simulation.ensemble import SimEnsemble, Verdicts
from tests.simulation.laws.checker import Court
from tests.simulation.script import Deed, Setup

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

    def fault(self, step: Step) -> InjectedFault | None:
        if not self._armed or not self._setup.fault_rate or self._random.random() >= self._setup.fault_rate:
            return None
        kind = self._random.choice(_FAULTS)
        self._fired[kind] += 1
        return InjectedFault(kind, self._random.randrange(len(step.rows)), self._random.random() < 0.5)

    def tell(self, court: Court) -> None:
        for point, count in self._fired.items():
            court.seen[f"mishap: {point}"] += count


_MEMORY = 1 << 30


class Nemesis:
    def __init__(self, sim: SimEnsemble, court: Court, verdicts: Verdicts) -> None:
        self._sim = sim
        self._court = court
        self._verdicts = verdicts
        self._num_under_way = 0

    @property
    def is_done(self) -> bool:
        """All that was done is undone."""
        return self._num_under_way == 0

    def plan(self, deeds: tuple[Deed, ...]) -> None:
        self._num_under_way += len(deeds)
        for deed in deeds:
            self._sim.loop.call_later(deed.at, self._do, deed)

    def _do(self, deed: Deed) -> None:
        self._court.note(f"{deed.kind} {deed.target} {deed.seconds:g}")
        self._court.see(f"deed: {deed.kind}")
        undo = self._done(deed)
        seconds = 0.0 if deed.kind in ("wall", "reset") else deed.seconds
        self._sim.loop.call_later(seconds, self._undo, deed, undo)

    def _undo(self, deed: Deed, undo: Callable[[], None]) -> None:
        undo()
        self._court.note(f"{deed.kind} {deed.target} is over")
        self._num_under_way -= 1

    def _done(self, deed: Deed) -> Callable[[], None]:
        """What undoes it."""
        if deed.kind == "wall":
            self._sim.wall.step(deed.seconds)
            return _nothing
        if deed.kind == "drift":
            return self._verdicts.spoil(deed.target)
        machine = self._sim.machines[deed.target]
        match deed.kind:
            case "kill":
                machine.kill()
                return machine.start
            case "stop":
                machine.stop()
                return machine.resume
            case "cut" | "cut_there" | "cut_back":
                machine.link.cut(there=deed.kind != "cut_back", back=deed.kind != "cut_there")
                return machine.link.mend
            case "slow":
                machine.link.factor = deed.factor
                return lambda: setattr(machine.link, "factor", 1.0)
            case "crawl":
                machine.slowness = deed.factor / 5
                return lambda: setattr(machine, "slowness", 1.0)
            case "short":
                machine.memory = MemoryUsage(round(deed.factor * _MEMORY), _MEMORY)
                return lambda: setattr(machine, "memory", None)
            case _:
                machine.link.lose()
                return _nothing


def _nothing() -> None:
    """It cannot be undone, or need not."""
