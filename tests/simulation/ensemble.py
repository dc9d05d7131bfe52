"""A whole ensemble on one event heap: router, replicas, callers and their expected answers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, TypeVar

import grpc

from octet.config.ensemble import (
    CorrectnessConfig,
    DispatchConfig,
    Ensemble,
    EscalationConfig,
    IntentConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)
from octet.identity import Lane
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.dispatch.http2.call import ReadLimits
from router.dispatch.transport import ReplicaTarget
from router.routing.policy import ClassifierClient
from router.verify.by_task import VerifierSet, open_verifiers
from router.verify.verdict import Verdict
from simulation.cluster import Machine
from simulation.event_loop import HeapLoop, Process, WallClock
from simulation.network import Address, Channel, Delays, Link
from simulation.replica import MODEL, REVISION, ReplicaSpec, adapter_digest, sim_codec
from simulation.router import NoClassifier, SimulatedRouter, VerifierSource
from specialist.engines.sim.engine import FaultSource, SimModel, no_faults
from specialist.engines.sim.vocabulary import NUM_SAMPLED
from specialist.scheduling.sequence import Request
from specialist.text.prompt import ChatTurn
from tests.simulation.script import ADAPTERS, ScriptedRequest, Setup

_WORDS = sim_codec()
(_END_ID,) = _WORDS.stop_ids


def golden(ask: ScriptedRequest, specialist: str, context: int, model: SimModel = MODEL) -> tuple[int, ...]:
    """Return this specialist's correct answer, with the requested adapters. The model reads the text without the
    whitespace at its end."""
    return _answer(ask.text.rstrip(), specialist, ask.adapters, ask.max_tokens, ask.seed, ask.exact, context, model)


@lru_cache(maxsize=4096)
def _answer(
    text: str,
    specialist: str,
    adapters: tuple[str, ...],
    max_tokens: int,
    seed: int,
    exact: bool,
    context: int,
    model: SimModel,
) -> tuple[int, ...]:
    prompt = _WORDS.render([ChatTurn("user", text)])
    lane = Lane(specialist, REVISION, tuple(adapter_digest(name) for name in adapters))
    stop_ids = frozenset[int]() if exact else _WORDS.stop_ids
    request = Request("golden", lane, prompt, min(max_tokens, context - len(prompt)), stop_ids=stop_ids, seed=seed)
    return model.answer(request)


_T = TypeVar("_T")
_WARM_SECONDS = 60.0
_FIRST_PORT = 10_000


class SimEnsemble:
    """A simulated ensemble, used as `with SimEnsemble(...) as ensemble:`. Simulated time advances inside
    `ensemble.run(coroutine)`."""

    def __init__(
        self,
        ensemble: Ensemble,
        specs: Mapping[str, ReplicaSpec],
        replicas: Mapping[str, int],
        *,
        seed: int = 0,
        classifier: ClassifierClient | None = None,
        delays: Delays | None = None,
        faults: FaultSource = no_faults,
        verdicts: VerifierSource = open_verifiers,
    ) -> None:
        """`specs` and `replicas` are keyed by specialist. Without a classifier, requests must name a specialist."""
        self.config = ensemble
        self.loop = HeapLoop()
        self.wall = WallClock(self.loop)
        self.random = Random(seed)
        self._classifier = classifier or NoClassifier()
        self._delays = delays
        self._verdicts = verdicts
        self.machines: dict[str, Machine] = {}
        """Machines by the name that the router gives the replica."""
        self._by_address: dict[str, Machine] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        for name, spec in specs.items():
            self._addresses[name] = tuple(self._machine(name, spec, i, faults) for i in range(replicas[name]))
        self.router_process = Process("router")
        self._router_address = Address()
        self.router_link = Link(self.loop, self._fork(), delays)
        self._router: SimulatedRouter | None = None

    @property
    def router(self) -> SimulatedRouter:
        if self._router is None:
            raise RuntimeError("start it first")
        return self._router

    def _fork(self) -> Random:
        return Random(self.random.getrandbits(64))

    def _machine(self, specialist: str, spec: ReplicaSpec, index: int, faults: FaultSource) -> str:
        address = f"10.0.0.1:{_FIRST_PORT + len(self.machines)}"
        machine = Machine(f"{specialist}-{index}", spec, self.loop, self._fork(), self._delays, faults)
        self.machines[machine.name] = self._by_address[address] = machine
        return address

    def _connect(self, target: ReplicaTarget, _: ReadLimits) -> Channel:
        return self._by_address[target.address].channel()

    async def start(self) -> None:
        """Start all processes. Return when every specialist has a serving replica."""
        for machine in self.machines.values():
            machine.start()
        router = self.router_process.context.copy().run(self._build_router)
        task = self.loop.create_task(router.start(), context=self.router_process.context.copy())
        await task
        await router.warm(_WARM_SECONDS)

    def _build_router(self) -> SimulatedRouter:
        self._router = router = SimulatedRouter(
            self.config,
            self._addresses,
            self._classifier,
            self.loop,
            self.wall,
            self._fork(),
            self._connect,
            self._verdicts,
        )
        self._router_address.listen(self.router_process, router.port)
        return router

    def channel(self, link: Link | None = None) -> Channel:
        """Return a caller's channel to the router."""
        return Channel(self.loop, link or self.router_link, self._router_address, self._fork())

    def caller_link(self) -> Link:
        """Return a separate connection to the router."""
        return Link(self.loop, self._fork(), self._delays)

    async def stop(self) -> None:
        await self.loop.create_task(self.router.close(), context=self.router_process.context.copy())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        result: _T = self.loop.run_until_complete(work)
        return result

    def __enter__(self) -> "SimEnsemble":
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.cancel_all()
        self.loop.close()


GENERATE = "/octet.v1.Inference/Generate"
CANCEL = "/octet.v1.Inference/Cancel"
_CANCEL_SECONDS = 5.0
_CALL_SECONDS = 5.0
"""Seconds by which the timeout of the gRPC call exceeds that of the request."""


@dataclass(slots=True)
class CallRecord:
    """What a caller received for one request, in order."""

    ask: ScriptedRequest
    began: float
    routed: list[wire.Receipt] = field(default_factory=list)
    """One receipt per replica that accepted the request. There are several if a replica was lost before the first
    token."""
    tokens: list[int] = field(default_factory=list)
    first_at: float | None = None
    """When the first token arrived."""
    receipt: wire.Receipt | None = None
    receipt_at: float | None = None
    """Arrival time of the receipt of a complete answer."""
    code: grpc.StatusCode | None = None
    """The status of the call, or None until it has ended."""
    error: error_pb2.Error | None = None
    ended: float | None = None
    num_ends: int = 0
    is_out_of_order: bool = False
    """Whether a replica accepted the request after a token had arrived."""
    cancelled_at: float | None = None
    """When the caller cancelled the request."""

    @property
    def cancelled(self) -> bool:
        return self.cancelled_at is not None

    def add_event(self, event: wire.InferEvent, now: float) -> None:
        kind = event.WhichOneof("event")
        if kind == "routed":
            self.is_out_of_order = self.is_out_of_order or bool(self.tokens)
            self.routed.append(event.routed)
        elif kind == "chunk":
            self.first_at = self.first_at or now
            self.tokens += event.chunk.token_ids
        else:
            self.receipt, self.receipt_at = event.receipt, now

    def end(self, code: grpc.StatusCode, now: float, error: Any = None) -> None:
        self.num_ends += 1
        self.code, self.ended = code, now
        beside = {} if error is None else dict(error.trailing_metadata() or ())
        if "octet-error-bin" in beside:
            self.error = error_pb2.Error.FromString(beside["octet-error-bin"])
        if "octet-receipt-bin" in beside:
            self.receipt = wire.Receipt.FromString(beside["octet-receipt-bin"])


def request_of(ask: ScriptedRequest) -> wire.InferRequest:
    return wire.InferRequest(
        request_id=ask.request_id,
        prompt=ask.text,
        force_specialists=ask.force,
        adapters=ask.adapters,
        max_tokens=ask.max_tokens,
        seed=ask.seed,
        priority=ask.priority,
        ignore_eos=ask.exact,
        session_id=ask.session,
        tenant_salt=ask.salt.encode(),
        timeout_ms=round(ask.timeout * 1000) if ask.in_request else None,
        first_token_timeout_ms=None if ask.first_timeout is None else round(ask.first_timeout * 1000),
    )


class Caller:
    """A caller in its own simulated process, with its own connection."""

    def __init__(self, sim: SimEnsemble, ask: ScriptedRequest) -> None:
        self._sim = sim
        self._link = sim.caller_link()
        self._channel = sim.channel(self._link)
        self._process = Process(f"caller {ask.number}")
        self.record = CallRecord(ask, sim.loop.time())
        self._call: Any = None

    def begin(self) -> "asyncio.Task[None]":
        return self._sim.loop.create_task(self._ask(), context=self._process.context.copy())

    async def _ask(self) -> None:
        record, loop, ask = self.record, self._sim.loop, self.record.ask
        record.began = loop.time()
        timeout = ask.timeout + _CALL_SECONDS if ask.in_request else ask.timeout
        raw = request_of(ask).SerializeToString()
        self._call = self._channel.stream(GENERATE, raw, timeout=timeout, parse=wire.InferEvent.FromString)
        if ask.cancel_after is not None:
            loop.call_later(ask.cancel_after, self._cancel)
        try:
            async for event in self._call:
                record.add_event(event, loop.time())
                if ask.pause:
                    await asyncio.sleep(ask.pause)
        except grpc.aio.AioRpcError as error:
            record.end(error.code(), loop.time(), error)
        except asyncio.CancelledError:
            record.end(grpc.StatusCode.CANCELLED, loop.time())
        else:
            record.end(grpc.StatusCode.OK, loop.time())

    def _cancel(self) -> None:
        record = self.record
        if record.ended is not None:
            return
        record.cancelled_at = self._sim.loop.time()
        if record.ask.cancel_how == "call":
            self._call.cancel()
        elif record.ask.cancel_how == "leave":
            self._link.lose()
        else:
            self._sim.loop.create_task(self._cancel_by_call())

    async def _cancel_by_call(self) -> None:
        raw = wire.CancelRequest(request_id=self.record.ask.request_id).SerializeToString()
        try:
            await self._channel.call(CANCEL, raw, timeout=_CANCEL_SECONDS, parse=wire.CancelResponse.FromString)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # The request has ended meanwhile.
                raise


_USUALLY, _SPOILT = 0.05, 0.9
"""Share of answers that fail verification, normally and while the specialist is spoilt."""
_NOTHING_TO_JUDGE = 0.05


class Verdicts:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._spoilt: Counter[str] = Counter()

    def spoil(self, specialist: str) -> Callable[[], None]:
        """Make most of the specialist's answers fail until the returned function is called."""
        self._spoilt[specialist] += 1

        def mend() -> None:
            self._spoilt[specialist] -= 1

        return mend

    def of(self, ensemble: Ensemble) -> VerifierSet:
        return VerifierSet(
            {each.name: _Verifier(each.name, each.verify, self._spoilt, self._random) for each in ensemble.specialists}
        )


class _Verifier:
    def __init__(self, specialist: str, name: str, spoilt: Counter[str], random: Random) -> None:
        self.name = name
        self._specialist = specialist
        self._spoilt = spoilt
        self._random = random

    async def verify(self, question: str, answer: str) -> Verdict:
        drawn = self._random.random()
        if drawn > 1 - _NOTHING_TO_JUDGE:
            return Verdict("skipped")
        fails = _SPOILT if self._spoilt[self._specialist] > 0 else _USUALLY
        return Verdict("failed", "drawn so") if drawn < fails else Verdict("passed")

    async def close(self) -> None: ...


_OFTEN = 3


@dataclass(frozen=True, slots=True)
class TerseModel(SimModel):
    """A model with short answers: about one in `_OFTEN` sampled tokens ends the answer."""

    vocab_size: int = NUM_SAMPLED

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        token = SimModel.sample(self, context, state, seed, position, allowed)
        return _END_ID if allowed is None and token % _OFTEN == 0 else token


TERSE = TerseModel()


_CONTEXT = 96
_MOST_COOL_DOWN = 4.0
_UNSURE = 0.7
_JUDGED = CorrectnessConfig(window=1.5, breach=0.5, min_samples=2, sample_rate=1.0)
_SHADOWED = ShadowConfig(budget=0.3, max_inflight=2, demoted_rate=1.0, timeout=5.0)


def context_of(setup: Setup) -> int:
    return min(_CONTEXT, setup.num_blocks * setup.block_size)


def model_of(setup: Setup) -> SimModel:
    return TERSE if setup.judged else MODEL


def spec_of(name: str, setup: Setup) -> ReplicaSpec:
    return ReplicaSpec(
        name,
        num_blocks=setup.num_blocks,
        block_size=setup.block_size,
        max_running=setup.max_running,
        max_waiting=setup.max_waiting,
        context=_CONTEXT,
        adapters=ADAPTERS,
        model=model_of(setup),
    )


def ensemble_of(setup: Setup) -> Ensemble:
    names = tuple(setup.replicas)
    return Ensemble(
        specialists=tuple(
            SpecialistConfig(name, fallback=fallback, floor=0.5)
            for name, fallback in zip(names, (*names[1:], None), strict=True)
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
        intents=(IntentConfig("unspecified", shadow_threshold=_UNSURE),) if setup.judged else (),
        correctness=_JUDGED
        if setup.judged
        else CorrectnessConfig(window=3.0, breach=0.5, min_samples=3, sample_rate=0.5),
        shadow=_SHADOWED if setup.judged else ShadowConfig(budget=0.3, timeout=5.0),
        escalation=_escalation_of(setup),
        store=StoreConfig("memory"),
    )


def _escalation_of(setup: Setup) -> EscalationConfig:
    if not setup.judged:
        return EscalationConfig(min_requests=5, sustain=2.0, relax=4.0)
    return EscalationConfig(
        refused=0.2,
        calm=0.1,
        min_requests=2,
        sustain=1.1,
        relax=1.0,
        threshold_step=0.2,
        max_threshold=_UNSURE if setup.floor_first else 0.9,
        floor_step=4,
        max_floor=6,
    )
