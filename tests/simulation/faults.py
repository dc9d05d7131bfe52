"""Inject the faults of a script."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import get_args

from octet.rpc.memory import MemoryUsage
from specialist.engines.sim.engine import FaultKind, InjectedFault
from specialist.scheduling.step import Step
from tests.simulation.ensemble import SimEnsemble, Verdicts
from tests.simulation.laws.checker import LawChecker
from tests.simulation.script import ScriptedFault, Setup

_FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)


class RandomFaults:
    """Random faults, drawn from the seed. They can occur once the ensemble has started, until all scripted faults are
    undone."""

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
        rate = self._setup.fault_points.get(point)
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

    def report(self, checker: LawChecker) -> None:
        for point, count in self._fired.items():
            checker.seen[f"fault_point: {point}"] += count


_MEMORY = 1 << 30


class Nemesis:
    def __init__(self, sim: SimEnsemble, checker: LawChecker, verdicts: Verdicts) -> None:
        self._sim = sim
        self._checker = checker
        self._verdicts = verdicts
        self._num_under_way = 0

    @property
    def is_done(self) -> bool:
        """Whether every fault has been undone."""
        return self._num_under_way == 0

    def plan(self, faults: tuple[ScriptedFault, ...]) -> None:
        self._num_under_way += len(faults)
        for fault in faults:
            self._sim.loop.call_later(fault.at, self._do, fault)

    def _do(self, fault: ScriptedFault) -> None:
        self._checker.note(f"{fault.kind} {fault.target} {fault.seconds:g}")
        self._checker.see(f"fault: {fault.kind}")
        undo = self._inject(fault)
        seconds = 0.0 if fault.kind in ("wall", "reset") else fault.seconds
        self._sim.loop.call_later(seconds, self._undo, fault, undo)

    def _undo(self, fault: ScriptedFault, undo: Callable[[], None]) -> None:
        undo()
        self._checker.note(f"{fault.kind} {fault.target} is over")
        self._num_under_way -= 1

    def _inject(self, fault: ScriptedFault) -> Callable[[], None]:
        """Inject a fault. Return the function that undoes it."""
        if fault.kind == "wall":
            self._sim.wall.step(fault.seconds)
            return _nothing
        if fault.kind == "drift":
            return self._verdicts.spoil(fault.target)
        machine = self._sim.machines[fault.target]
        match fault.kind:
            case "kill":
                machine.kill()
                return machine.start
            case "stop":
                machine.stop()
                return machine.resume
            case "cut" | "cut_there" | "cut_back":
                machine.link.cut(there=fault.kind != "cut_back", back=fault.kind != "cut_there")
                return machine.link.mend
            case "slow":
                machine.link.factor = fault.factor
                return lambda: setattr(machine.link, "factor", 1.0)
            case "crawl":
                machine.slowness = fault.factor / 5
                return lambda: setattr(machine, "slowness", 1.0)
            case "short":
                machine.memory = MemoryUsage(round(fault.factor * _MEMORY), _MEMORY)
                return lambda: setattr(machine, "memory", None)
            case _:
                machine.link.lose()
                return _nothing


def _nothing() -> None:
    """Do nothing. This is the undo of a fault that needs none."""
