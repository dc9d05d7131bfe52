"""Run one script from its start to rest under every law."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from octet.fault_points import inject_faults
from router.routing.classifier.base import ClassifierUnavailable, Distribution
from simulation.cluster import Machine
from simulation.event_loop import LoopStuck
from tests.simulation.ensemble import Caller, SimEnsemble, Verdicts, context_of, ensemble_of, model_of, spec_of
from tests.simulation.faults import Chances, Nemesis
from tests.simulation.laws.breakers import BreakerLaws
from tests.simulation.laws.checker import Broken, Court, Unheard, excuses_of
from tests.simulation.laws.control import ControlLaws
from tests.simulation.laws.dispatch import Standings, WayLaws, turned_of
from tests.simulation.laws.replica import ReplicaLaws
from tests.simulation.laws.requests import RequestLaws
from tests.simulation.laws.shadow import ShadowLaws
from tests.simulation.script import Script

_PATIENCE = 40.0
"""Seconds in which everything comes to rest once nothing is done to it any more."""
_CHANCES = 0x5EED
"""What goes wrong by itself is drawn apart from delays and choices."""
_VERDICTS = 0x7E57
"""So are verdicts."""
_MOMENT = 1e-3
_LEFT_SECONDS = 1.0
"""The longest step, and some way."""


class PromptClassifier:
    """A prompt starts with its specialist and the confidence: `NAME PERCENT ...`. The rest of the probability goes to
    the next specialist in order."""

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
class Lived:
    """What came of it."""

    script: Script
    digest: str
    """Of the history: the same script has the same."""
    broken: str
    """The first law that did not hold; empty where all did."""
    seen: dict[str, int]
    num_events: int
    seconds: float
    """Simulated."""
    lines: tuple[str, ...] = ()


def live(script: Script, *, keep: bool = False) -> Lived:
    """`keep` the history itself."""
    chances, verdicts = Chances(Random(script.seed ^ _CHANCES), script.setup), Verdicts(Random(script.seed ^ _VERDICTS))
    with _staged(script, chances, verdicts) as sim:
        court = Court(sim.loop, keep=keep)
        life = _Life(script, sim, court, chances, verdicts)
        with inject_faults(chances.decide), Unheard(court, excuses_of(script)):
            life.run()
            chances.tell(court)
            lived = _told(script, sim, court)
            sim.loop.cancel_all()
        return lived


def _staged(script: Script, chances: Chances, verdicts: Verdicts) -> SimEnsemble:
    setup = script.setup
    return SimEnsemble(
        ensemble_of(setup),
        {name: spec_of(name, setup) for name in setup.replicas},
        setup.replicas,
        seed=script.seed,
        classifier=PromptClassifier(tuple(setup.replicas)),
        faults=chances.fault,
        verdicts=verdicts.of,
    )


def _told(script: Script, sim: SimEnsemble, court: Court) -> Lived:
    return Lived(
        script,
        court.digest(),
        "" if court.broken is None else str(court.broken),
        dict(court.seen),
        sim.loop.num_events,
        sim.loop.time(),
        tuple(court.lines or ()),
    )


class _Life:
    def __init__(self, script: Script, sim: SimEnsemble, court: Court, chances: Chances, verdicts: Verdicts) -> None:
        self._script = script
        self._sim = sim
        self._court = court
        self._chances = chances
        self._nemesis = Nemesis(sim, court, verdicts)
        self._requests = RequestLaws(sim.config, context_of(script.setup), model_of(script.setup), court)
        self._laws: dict[Machine, ReplicaLaws] = {}
        self._callers = [Caller(sim, ask) for ask in script.asks]
        for machine in sim.machines.values():
            machine.on_start.append(self._watch)

    def run(self) -> None:
        """Whatever law is broken is the court's to tell."""
        self._sim.loop.after_event = self._court.after_event
        try:
            self._sim.run(self._live())
        except Broken:
            return
        except (LoopStuck, TimeoutError) as error:
            self._court.require(False, "everything comes to an end", error)

    async def _live(self) -> None:
        await self._sim.start()
        self._watch_breakers()
        self._watch_control()
        self._chances.arm()
        tasks: list[asyncio.Task[None]] = []
        for caller in self._callers:
            self._sim.loop.call_later(caller.told.ask.at, self._begin, caller, tasks)
        self._nemesis.plan(self._script.deeds)
        await asyncio.sleep(max((ask.at for ask in self._script.asks), default=0.0) + _MOMENT)
        await asyncio.gather(*tasks)
        for caller in self._callers:
            self._requests.ended(caller.told)
            self._ways.ended(caller.told)
        if self._script.setup.calm:
            self._requests.kept_promises([caller.told for caller in self._callers])
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
        """Soon after a caller has gone, nobody computes for it where nothing is in the way of the news."""
        disturbed = {deed.target for deed in self._script.deeds}
        for machine, laws in self._laws.items():
            if machine.name not in disturbed:
                laws.forgotten(caller.told.ask.request_id)

    async def _rest(self) -> None:
        """Nothing is done any more, everything heals, and nothing is left of anybody."""
        await self._until(lambda: self._nemesis.is_done, "nemesis")
        self._chances.disarm()
        await self._until(self._is_idle, "no request is left behind")
        await self._until(self._is_whole, "a recovered replica is used again")
        for laws in self._laws.values():
            laws.at_rest()

    async def _until(self, reached: Callable[[], bool], law: str) -> None:
        end = self._sim.loop.time() + _PATIENCE
        while not reached() and self._sim.loop.time() < end:
            await asyncio.sleep(0.25)
        self._court.require(reached(), law, self._state())

    def _state(self) -> str:
        fleet = self._sim.router.fleet
        told = [
            f"{each.name}: {each.breaker.state}, linked {each.is_connected}, warm {each.is_serving}, "
            f"hung {each.is_hung}, inflight {each.inflight}, process {self._sim.machines[each.name].process.state}"
            for each in fleet.replicas
        ]
        return f"{len(self._sim.router.live)} live; {'; '.join(told)}"

    def _is_idle(self) -> bool:
        router = self._sim.router
        inflight = sum(replica.inflight for replica in router.fleet.replicas)
        busy = len(router.live) or inflight or router.services.shadows.num_inflight
        return not busy and all(laws.is_idle for laws in self._laws.values())

    def _is_whole(self) -> bool:
        return all(replica.is_usable for replica in self._sim.router.fleet.replicas)

    def _look_back(self) -> None:
        backstage = self._sim.router.services
        for name, level in backstage.control.escalation().items():
            self._court.seen["escalated"] += level > 0
            self._court.note(f"{name} at level {level}")
        for info in backstage.control.breakers():
            self._court.seen["demoted"] += info.state != "closed"
            self._court.note(f"{info.specialist} {info.state}")

    def _at_the_end(self) -> None:
        require, router = self._court.require, self._sim.router
        require(router.live.num_bytes == 0, "no byte of a request is left at the router")
        require(router.services.shadows.byte_budget.taken == 0, "no byte of a shadow is left")

    def _watch(self, machine: Machine) -> None:
        if machine.replica is not None:
            self._laws[machine] = ReplicaLaws(machine.name, machine.replica, self._court)

    def _watch_control(self) -> None:
        sim, court, control = self._sim, self._court, self._sim.router.services.control
        turned = turned_of(sim.config)
        standings = Standings(control, court, sim.loop.time)
        ControlLaws(sim.config, turned, control, sim.wall, court)
        self._ways = WayLaws(sim.config, self._script, standings, turned, court)
        self._ways.watch(sim.router.pipeline)
        asks = {ask.request_id: ask for ask in self._script.asks}
        shadows = sim.router.services.shadows
        self._shadows = ShadowLaws(shadows, sim.config.shadow, asks, standings, turned, court, sim.loop.time)

    def _watch_breakers(self) -> None:
        router = self._sim.router
        dispatch = router.fleet.dispatch
        for replica in router.fleet.replicas:
            BreakerLaws(
                replica.name,
                replica.breaker,
                router.clock,
                self._court,
                failures=dispatch.failures,
                first=dispatch.cool_down,
                most=dispatch.max_cool_down,
            )
