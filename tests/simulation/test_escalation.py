"""Two intents on one specialist, with a real router and real schedulers in simulated time: only the one that overloads
moves, and it returns when its load is gone."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from octet.config.ensemble import Ensemble, EscalationConfig, IntentConfig, SpecialistConfig, StoreConfig, TaskConfig
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.request import Request
from router.routing.dispatch_plan import DispatchPlan
from simulation.replica import ReplicaSpec
from tests.simulation.ensemble import GENERATE, SimEnsemble
from tests.simulation.laws.dispatch import has_room
from tests.simulation.run import PromptClassifier

RULES = EscalationConfig(min_requests=5, sustain=5.0, relax=20.0)
ENSEMBLE = Ensemble(
    specialists=(SpecialistConfig("algo"), SpecialistConfig("stl")),
    intents=(IntentConfig("steady"), IntentConfig("surge")),
    tasks=(TaskConfig("default", temperature=0.0, max_tokens=32, top_p=1.0, repetition_penalty=1.0),),
    escalation=RULES,
    store=StoreConfig("memory"),
)
Loads = Mapping[str, tuple[str, Sequence[int], int]]  # by intent: the prompt, priorities in turn, requests per second


def spec_of(name: str) -> ReplicaSpec:
    return ReplicaSpec(name, num_blocks=64, block_size=8, max_running=2, max_waiting=2, context=96)


UNSURE = "algo 60"  # the prompt of both intents: the same steps would help both


@dataclass
class Watched:
    """What the router did with the requests of the run."""

    below_floor: int = 0  # refused
    offered: int = 0  # below a floor, and offered to the second choice
    taken: int = 0  # offered and answered
    refused_beside_room: list[str] = field(default_factory=list)
    answered: Counter[tuple[str, str]] = field(default_factory=Counter)  # by intent and specialist
    levels: list[tuple[float, str, int]] = field(default_factory=list)  # changes of the level of an intent at algo


class Driver:
    def __init__(self, sim: SimEnsemble) -> None:
        self.sim = sim
        self.watched = Watched()
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._levels: dict[str, int] = {}

    def watch(self) -> None:
        """Check at each refusal below a floor whether the second choice had room when the request was dispatched."""
        pipeline: Any = self.sim.router.pipeline
        dispatcher, plan = pipeline.dispatcher, pipeline.plan
        dispatch = dispatcher.answer

        async def planned(request: Request) -> Any:
            refusal = await plan(request)
            if refusal is not None and refusal.error.reason == error_pb2.ERROR_REASON_BELOW_FLOOR:
                second = request.decision.second_choice
                if second and has_room(dispatcher.fleet.replica_sets[second]):
                    self.watched.refused_beside_room.append(request.request_id)
            return refusal

        async def dispatched(request: Request, order: DispatchPlan, *arguments: Any) -> None:
            second = dispatcher.fleet.replica_sets[order.candidates[0].specialist]
            had_room = has_room(second)
            self.watched.offered += order.otherwise is not None
            try:
                await dispatch(request, order, *arguments)
                self.watched.taken += order.otherwise is not None
            except Exception as error:
                if error is order.otherwise and had_room and second.specialist not in request.full:
                    self.watched.refused_beside_room.append(request.request_id)
                raise

        pipeline.plan, dispatcher.answer = planned, dispatched

    async def run(self, seconds: int, loads: Loads) -> None:
        """Send requests for some seconds."""
        start = self.sim.loop.time()
        for tick in range(seconds * 20):
            for intent, (prompt, priorities, rate) in loads.items():
                for _ in range((tick + 1) * rate // 20 - tick * rate // 20):
                    self._number += 1
                    priority = priorities[self._number % len(priorities)]
                    self._send(intent, f"{prompt} {self._number}", priority)
            await asyncio.sleep(start + (tick + 1) / 20 - self.sim.loop.time())
            for (intent, name), ladder in self.sim.router.services.control.escalation().items():
                if name == "algo" and self._levels.get(intent, 0) != ladder.level:
                    self._levels[intent] = ladder.level
                    self.watched.levels.append((self.sim.loop.time(), intent, ladder.level))

    def _send(self, intent: str, prompt: str, priority: int) -> None:
        ask = wire.InferRequest(prompt=prompt, intent=intent, priority=priority, max_tokens=32, ignore_eos=True)
        task = self.sim.loop.create_task(self._ask(intent, ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, intent: str, ask: wire.InferRequest) -> None:
        channel = self.sim.channel()
        try:
            call = channel.stream(GENERATE, ask.SerializeToString(), timeout=20.0, parse=wire.InferEvent.FromString)
            async for event in call:
                if event.WhichOneof("event") == "receipt":
                    self.watched.answered[intent, event.receipt.specialist] += 1
        except grpc.aio.AioRpcError as error:
            found = error_pb2.Error.FromString(dict(error.trailing_metadata() or ())["octet-error-bin"])
            self.watched.below_floor += found.reason == error_pb2.ERROR_REASON_BELOW_FLOOR


def test_only_the_intent_that_overloads_moves_and_it_returns_with_its_load() -> None:
    specs = {name: spec_of(name) for name in ENSEMBLE.names}
    replicas = dict.fromkeys(ENSEMBLE.names, 1)
    with SimEnsemble(ENSEMBLE, specs, replicas, classifier=PromptClassifier(ENSEMBLE.names)) as sim:
        driver = Driver(sim)
        steady: Loads = {"steady": (UNSURE, (5,), 1)}
        times: list[float] = []

        async def live() -> None:
            await sim.start()
            driver.watch()
            await driver.run(75, steady)  # a whole minute, which makes the demand usual
            for seconds, loads in ((40, {**steady, "surge": (UNSURE, (3, 7), 20)}), (30, steady)):
                times.append(sim.loop.time())
                await driver.run(seconds, loads)
            await sim.stop()

        sim.run(live())
    watched = driver.watched
    assert {intent for _, intent, _ in watched.levels} == {"surge"}, "only the intent that overloads moves"
    surged, ended = times
    ups = [at for at, _, level in watched.levels if level and at < ended]
    assert ups and ups[0] - surged <= RULES.sustain + 3
    last, _, level = watched.levels[-1]
    assert level == 0 and 0 < last - ended <= 2 * RULES.sustain + 3, "all steps are undone, and stay so"
    assert watched.answered["surge", "stl"] > 0 and not watched.refused_beside_room
    assert watched.offered > watched.taken > 0 and watched.below_floor > 0, "the floor rises, and requests are below it"
