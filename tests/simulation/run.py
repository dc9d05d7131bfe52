"""Run a script until the ensemble is at rest, checking every law (invariant) along the way."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from octet.fault_points import inject_faults
from router.routing.classifier.base import ClassifierUnavailable, Distribution
from simulation.cluster import Machine
from simulation.event_loop import LoopStuck
from tests.simulation.ensemble import Caller, SimEnsemble, Verdicts, context_of, ensemble_of, model_of, spec_of
from tests.simulation.faults import Nemesis, RandomFaults
from tests.simulation.laws.breakers import BreakerLaws
from tests.simulation.laws.checker import ErrorLogWatcher, LawChecker, LawViolation, excuses_of
from tests.simulation.laws.control import ControlLaws
from tests.simulation.laws.dispatch import DispatchLaws, StatusHistory, knob_levels_of
from tests.simulation.laws.replica import ReplicaLaws
from tests.simulation.laws.requests import RequestLaws
from tests.simulation.laws.shadow import ShadowLaws
from tests.simulation.script import Script

_PATIENCE = 40.0
"""Seconds within which the ensemble must be at rest after the last fault."""
_RANDOM_FAULTS = 0x5EED
"""Random faults, delays and verdicts use separate random streams."""
_VERDICTS = 0x7E57
_MOMENT = 1e-3
_LEFT_SECONDS = 1.0
"""Seconds after which no replica may compute for a caller that left: the longest step plus network delay."""


class PromptClassifier:
    """A classifier that reads its result from the prompt: `NAME PERCENT ...`. The remaining probability goes to the
    next specialist in order, or to `reject` if there is only one specialist."""

    digest = "1" * 64

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def cached(self, text: str, tenant: str = "") -> Distribution | None:
        return None

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        name, percent, *_ = (*text.split(" ", 2), "", "")
        if name not in self._names or not percent.isdecimal():
            raise ClassifierUnavailable("the prompt names no specialist")
        share = min(100, max(1, int(percent))) / 100
        second = self._names[(self._names.index(name) + 1) % len(self._names)]
        rest = [(second, 1 - share)] if second != name else [("reject", 1 - share)]
        return Distribution.of([(name, share), *rest])


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a script."""

    script: Script
    digest: str
    """Hash of the history. Equal scripts have equal hashes."""
    broken: str
    """The first broken law, or an empty string."""
    seen: dict[str, int]
    num_events: int
    seconds: float
    """Simulated seconds."""
    lines: tuple[str, ...] = ()


def run_script(script: Script, *, keep: bool = False) -> RunResult:
    """Run a script, checking every law (invariant) along the way. With `keep`, the result has the history's lines."""
    random_faults, verdicts = (
        RandomFaults(Random(script.seed ^ _RANDOM_FAULTS), script.setup),
        Verdicts(Random(script.seed ^ _VERDICTS)),
    )
    with _staged(script, random_faults, verdicts) as sim:
        checker = LawChecker(sim.loop, keep=keep)
        life = _Run(script, sim, checker, random_faults, verdicts)
        with inject_faults(random_faults.decide), ErrorLogWatcher(checker, excuses_of(script)):
            life.run()
            random_faults.report(checker)
            result = _result(script, sim, checker)
            sim.loop.cancel_all()
        return result


def _staged(script: Script, random_faults: RandomFaults, verdicts: Verdicts) -> SimEnsemble:
    setup = script.setup
    return SimEnsemble(
        ensemble_of(setup),
        {name: spec_of(name, setup) for name in setup.replicas},
        setup.replicas,
        seed=script.seed,
        classifier=PromptClassifier(tuple(setup.replicas)),
        faults=random_faults.fault,
        verdicts=verdicts.of,
    )


def _result(script: Script, sim: SimEnsemble, checker: LawChecker) -> RunResult:
    return RunResult(
        script,
        checker.digest(),
        "" if checker.broken is None else str(checker.broken),
        dict(checker.seen),
        sim.loop.num_events,
        sim.loop.time(),
        tuple(checker.lines or ()),
    )


class _Run:
    def __init__(
        self, script: Script, sim: SimEnsemble, checker: LawChecker, random_faults: RandomFaults, verdicts: Verdicts
    ) -> None:
        self._script = script
        self._sim = sim
        self._checker = checker
        self._random_faults = random_faults
        self._nemesis = Nemesis(sim, checker, verdicts)
        self._requests = RequestLaws(sim.config, context_of(script.setup), model_of(script.setup), checker)
        self._laws: dict[Machine, ReplicaLaws] = {}
        self._callers = [Caller(sim, ask) for ask in script.asks]
        for machine in sim.machines.values():
            machine.on_start.append(self._watch)

    def run(self) -> None:
        """Run the script to its end, or until the checker has recorded a broken law."""
        self._sim.loop.after_event = self._checker.after_event
        try:
            self._sim.run(self._live())
        except LawViolation:
            return
        except (LoopStuck, TimeoutError) as error:
            self._checker.require(False, "everything comes to an end", error)

    async def _live(self) -> None:
        await self._sim.start()
        self._watch_breakers()
        self._watch_control()
        self._random_faults.arm()
        tasks: list[asyncio.Task[None]] = []
        for caller in self._callers:
            self._sim.loop.call_later(caller.record.ask.at, self._begin, caller, tasks)
        self._nemesis.plan(self._script.faults)
        await asyncio.sleep(max((ask.at for ask in self._script.asks), default=0.0) + _MOMENT)
        await asyncio.gather(*tasks)
        for caller in self._callers:
            self._requests.ended(caller.record)
            self._dispatch.ended(caller.record)
        if self._script.setup.calm:
            self._requests.kept_promises([caller.record for caller in self._callers])
        self._look_back()
        await self._rest()
        self._look_back()
        self._shadows.at_rest()
        await self._sim.stop()
        self._at_the_end()

    def _begin(self, caller: Caller, tasks: "list[asyncio.Task[None]]") -> None:
        task = caller.begin()
        tasks.append(task)
        task.add_done_callback(lambda _: self._sim.loop.call_later(_LEFT_SECONDS, self._check_left, caller))

    def _check_left(self, caller: Caller) -> None:
        """Check that no replica still computes this caller's request, whose call is over. Replicas with a scripted
        fault are exempt."""
        disturbed = {fault.target for fault in self._script.faults}
        for machine, laws in self._laws.items():
            if machine.name not in disturbed:
                laws.forgotten(caller.record.ask.request_id)

    async def _rest(self) -> None:
        """Wait until all faults are undone, replicas have recovered and no request is left."""
        await self._until(lambda: self._nemesis.is_done, "nemesis")
        self._random_faults.disarm()
        await self._until(self._is_idle, "no request is left behind")
        await self._until(self._is_whole, "a recovered replica is used again")
        for laws in self._laws.values():
            laws.at_rest()

    async def _until(self, reached: Callable[[], bool], law: str) -> None:
        end = self._sim.loop.time() + _PATIENCE
        while not reached() and self._sim.loop.time() < end:
            await asyncio.sleep(0.25)
        self._checker.require(reached(), law, self._state())

    def _state(self) -> str:
        fleet = self._sim.router.fleet
        record = [
            f"{each.name}: {each.breaker.state}, linked {each.is_connected}, warm {each.is_serving}, "
            f"hung {each.is_hung}, inflight {each.inflight}, process {self._sim.machines[each.name].process.state}"
            for each in fleet.replicas
        ]
        return f"{len(self._sim.router.live)} live; {'; '.join(record)}"

    def _is_idle(self) -> bool:
        router = self._sim.router
        inflight = sum(replica.inflight for replica in router.fleet.replicas)
        busy = len(router.live) or inflight or router.services.shadows.num_inflight
        return not busy and all(laws.is_idle for laws in self._laws.values())

    def _is_whole(self) -> bool:
        return all(replica.is_usable for replica in self._sim.router.fleet.replicas)

    def _look_back(self) -> None:
        services = self._sim.router.services
        for (intent, name), ladder in services.control.escalation().items():
            self._checker.seen["escalated"] += ladder.level > 0
            self._checker.note(f"{intent} at {name} at level {ladder.level}")
        for info in services.control.breakers():
            self._checker.seen["demoted"] += info.state != "closed"
            self._checker.note(f"{info.specialist} {info.state}")

    def _at_the_end(self) -> None:
        require, router = self._checker.require, self._sim.router
        require(router.live.num_bytes == 0, "no byte of a request is left at the router")
        require(router.services.shadows.byte_budget.taken == 0, "no byte of a shadow is left")

    def _watch(self, machine: Machine) -> None:
        if machine.replica is not None:
            self._laws[machine] = ReplicaLaws(machine.name, machine.replica, self._checker)

    def _watch_control(self) -> None:
        sim, checker, control = self._sim, self._checker, self._sim.router.services.control
        knob_levels = knob_levels_of(sim.config)
        status_history = StatusHistory(control, checker, sim.loop.time)
        ControlLaws(sim.config, knob_levels, control, sim.wall, checker)
        self._dispatch = DispatchLaws(sim.config, self._script, status_history, knob_levels, checker)
        self._dispatch.watch(sim.router.pipeline)
        asks = {ask.request_id: ask for ask in self._script.asks}
        shadows = sim.router.services.shadows
        self._shadows = ShadowLaws(
            shadows, sim.config.shadow, asks, status_history, knob_levels, checker, sim.loop.time
        )

    def _watch_breakers(self) -> None:
        router = self._sim.router
        dispatch = router.fleet.dispatch
        for replica in router.fleet.replicas:
            BreakerLaws(
                replica.name,
                replica.breaker,
                router.clock,
                self._checker,
                failures=dispatch.failures,
                first=dispatch.cool_down,
                most=dispatch.max_cool_down,
            )
