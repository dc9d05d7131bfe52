"""One script lived through from its beginning to rest, with every law held over it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import get_args

from bench.simulation.breaker_laws import BreakerLaws
from bench.simulation.caller import Caller
from bench.simulation.court import Broken, Court
from bench.simulation.draw import ADAPTERS, NAMES
from bench.simulation.ensemble import SimEnsemble
from bench.simulation.heap_loop import NothingLeft
from bench.simulation.machine import Machine
from bench.simulation.nemesis import Nemesis
from bench.simulation.opinions import ReadOpinions
from bench.simulation.replica import ReplicaSpec
from bench.simulation.replica_laws import ReplicaLaws
from bench.simulation.request_laws import RequestLaws
from bench.simulation.script import Script, Setup
from bench.simulation.unheard import Unheard
from bench.simulation.verdicts import Verdicts
from octet.config.ensemble import (
    CorrectnessConfig,
    DispatchConfig,
    Ensemble,
    EscalationConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)
from octet.mishap import installed
from specialist.engines.sim import Fault, FaultKind
from specialist.step import Step

_CONTEXT = 96
_PATIENCE = 40.0
"""Seconds in which everything comes to rest once nothing is done to it any more."""
_MOST_COOL_DOWN = 4.0
_MOMENT = 1e-3
_LEFT_SECONDS = 1.0
"""The longest step, and some way."""
_FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)


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
    setup = script.setup
    chances = _Chances(Random(script.seed ^ 0x5EED), setup)
    specs = {name: _spec(name, setup) for name in NAMES}
    opinions, verdicts = ReadOpinions(NAMES), Verdicts()
    with (
        SimEnsemble(
            ensemble_of(setup),
            specs,
            setup.replicas,
            seed=script.seed,
            opinions=opinions,
            faults=chances.fault,
            verdicts=verdicts.of,
        ) as sim,
    ):
        court = Court(sim.loop)
        court.lines = [] if keep else None
        life = _Life(script, sim, court, chances, verdicts)
        with installed(chances.decide), Unheard(court):
            life.run()
        chances.tell(court)
        digest = court.digest()
        num_events, seconds = sim.loop.num_events, sim.loop.time()
        with Unheard(Court(sim.loop)):
            sim.loop.wind_up()
        return Lived(
            script,
            digest,
            "" if court.broken is None else str(court.broken),
            dict(court.seen),
            num_events,
            seconds,
            tuple(court.lines or ()),
        )


class _Life:
    def __init__(self, script: Script, sim: SimEnsemble, court: Court, chances: "_Chances", verdicts: Verdicts) -> None:
        self._script = script
        self._sim = sim
        self._court = court
        self._chances = chances
        self._nemesis = Nemesis(sim, court, verdicts)
        self._requests = RequestLaws(sim.config, context_of(script.setup), court)
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
        except (NothingLeft, TimeoutError) as error:
            self._court.require(False, "everything comes to an end", error)

    async def _live(self) -> None:
        await self._sim.start()
        self._watch_breakers()
        self._chances.arm()
        tasks: list[asyncio.Task[None]] = []
        for caller in self._callers:
            self._sim.loop.call_later(caller.told.ask.at, self._begin, caller, tasks)
        self._nemesis.plan(self._script.deeds)
        await asyncio.sleep(max((ask.at for ask in self._script.asks), default=0.0) + _MOMENT)
        await asyncio.gather(*tasks)
        for caller in self._callers:
            self._requests.ended(caller.told)
        if self._script.setup.calm:
            self._requests.kept_promises([caller.told for caller in self._callers])
        self._look_back()
        await self._rest()
        self._look_back()
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
        await self._until(self._is_idle, "nobody is left behind")
        await self._until(self._is_whole, "whoever is sound again is used again")
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
            f"{each.name}: {each.breaker.state}, linked {each.linked}, warm {each.warm}, hung {each.hung}, "
            f"inflight {each.inflight}, process {self._sim.machines[each.name].process.state}"
            for each in fleet.replicas
        ]
        return f"{len(self._sim.router.live)} live; {'; '.join(told)}"

    def _is_idle(self) -> bool:
        router = self._sim.router
        inflight = sum(replica.inflight for replica in router.fleet.replicas)
        busy = len(router.live) or inflight or router.backstage.shadows.num_inflight
        return not busy and all(laws.is_idle for laws in self._laws.values())

    def _is_whole(self) -> bool:
        return all(replica.usable for replica in self._sim.router.fleet.replicas)

    def _look_back(self) -> None:
        backstage = self._sim.router.backstage
        for name, level in backstage.control.escalation().items():
            self._court.seen["escalated"] += level > 0
            self._court.note(f"{name} at level {level}")
        for info in backstage.control.breakers():
            self._court.seen["demoted"] += info.state != "closed"
            self._court.note(f"{info.specialist} {info.state}")

    def _at_the_end(self) -> None:
        require, router = self._court.require, self._sim.router
        self._court.seen["shadow answered"] += router.backstage.shadows.tally.answered
        require(router.live.num_bytes == 0, "no byte of a request is left at the router")
        require(router.backstage.shadows.room.taken == 0, "no byte of a shadow is left")

    def _watch(self, machine: Machine) -> None:
        if machine.house is not None:
            self._laws[machine] = ReplicaLaws(machine.name, machine.house, self._court)

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


class _Chances:
    """What goes wrong by itself, drawn from the seed; nothing before everything is up, and nothing at the end."""

    def __init__(self, random: Random, setup: Setup) -> None:
        self._random = random
        self._setup = setup
        self._armed = False
        self._fired: dict[str, int] = {}

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def decide(self, point: str) -> bool:
        rate = self._setup.mishaps.get(point)
        if rate is None or not self._armed or self._random.random() >= rate:
            return False
        self._fired[point] = self._fired.get(point, 0) + 1
        return True

    def fault(self, step: Step) -> Fault | None:
        if not self._armed or not self._setup.fault_rate or self._random.random() >= self._setup.fault_rate:
            return None
        kind = self._random.choice(_FAULTS)
        self._fired[kind] = self._fired.get(kind, 0) + 1
        return Fault(kind, self._random.randrange(len(step.rows)), self._random.random() < 0.5)

    def tell(self, court: Court) -> None:
        for point, count in self._fired.items():
            court.seen[f"mishap: {point}"] += count


def context_of(setup: Setup) -> int:
    return min(_CONTEXT, setup.num_blocks * setup.block_size)


def _spec(name: str, setup: Setup) -> ReplicaSpec:
    return ReplicaSpec(
        name,
        num_blocks=setup.num_blocks,
        block_size=setup.block_size,
        max_running=setup.max_running,
        max_waiting=setup.max_waiting,
        context=_CONTEXT,
        adapters=ADAPTERS,
    )


def ensemble_of(setup: Setup) -> Ensemble:
    return Ensemble(
        specialists=tuple(
            SpecialistConfig(name, fallback=NAMES[1] if name == NAMES[0] else None, floor=0.5) for name in NAMES
        ),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=16, top_p=1.0, repetition_penalty=1.0),),
        dispatch=DispatchConfig(
            failures=setup.failures,
            max_attempts=setup.max_attempts,
            cool_down=setup.cool_down,
            max_cool_down=_MOST_COOL_DOWN,
            stall_seconds=8.0,
            heartbeat_seconds=0.4,
        ),
        correctness=CorrectnessConfig(window=3.0, breach=0.5, min_samples=3, sample_rate=0.5),
        shadow=ShadowConfig(budget=0.3, timeout=5.0),
        escalation=EscalationConfig(min_requests=5, sustain=2.0, relax=4.0),
        store=StoreConfig("memory"),
    )
