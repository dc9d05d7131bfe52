"""A replica's process: everything that serves one specialist but the sockets and the thread."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bench.simulation.adapters import NamedAdapters
from bench.simulation.clock import EngineClock
from bench.simulation.heap_loop import HeapLoop
from bench.simulation.port import Port
from bench.simulation.pump import EnginePump
from bench.simulation.words import NUM_SAMPLED, SimWords
from kvpool import BlockPool
from octet.config.ensemble import SpecialistConfig
from octet.identity import Lane, digest_of
from octet.rpc.cgroup_memory import Memory
from octet.rpc.memory_guard import MemoryGuard
from octet.telemetry.page import Page
from octet.v1 import specialist_pb2 as wire
from specialist.calibrated import prices_of
from specialist.engines.base import Engine
from specialist.engines.sim import CostModel, FaultSource, SimEngine, SimModel
from specialist.engines.sim.calibration import cost_model_from_json
from specialist.front import new_desk
from specialist.guide.grammars import Grammars
from specialist.loop import StepLoop
from specialist.service.board import LoadBoard
from specialist.service.engine_thread import Handover
from specialist.service.forms import Forms
from specialist.service.generate import Generator
from specialist.service.limits import Limits
from specialist.service.load import Seats, load_of
from specialist.service.meter import Meter
from specialist.service.reception import Reception
from specialist.service.replica import Replica
from specialist.service.scheduling import new_scheduler
from specialist.service.service import NAME, SpecialistService
from specialist.service.settings import ReplicaSettings, ServiceSettings
from specialist.service.sim_replica import CONTEXT, TOKEN_BYTES
from specialist.service.sim_vocabulary import sim_vocabulary
from specialist.service.validate import Validator
from specialist.service.warm import NotWarm, warm_up

REVISION = digest_of([b"simulation", str(NUM_SAMPLED).encode()]).hex()
MODEL = SimModel(NUM_SAMPLED)
_SEED_BITS = 63
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def no_fault(_: object) -> None:
    """Steps go well."""


def no_limit() -> Memory | None:
    """There is memory enough."""
    return None


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What a replica consists of."""

    specialist: str
    num_blocks: int = 512
    block_size: int = 16
    max_running: int = 16
    max_waiting: int = 256
    context: int = 4096
    adapters: tuple[str, ...] = ()
    cost: CostModel = field(default_factory=CostModel)
    """What steps take."""
    prefix_cache: bool = True
    itl_seconds: float = 0.1
    warm_seconds: float = 0.3
    """From its start until it serves, beside the steps it takes for that."""
    model: SimModel = MODEL
    engine: Callable[["ReplicaSpec", EngineClock, FaultSource], Engine] | None = None
    """Another than the one that computes by arithmetic."""

    @classmethod
    def of(cls, config: SpecialistConfig, cost: CostModel | None = None) -> "ReplicaSpec":
        """As `octet serve` would start it with the sim engine. Without a cost model the configuration's counts. Raises
        OSError, CalibrationInvalid."""
        if cost is None:
            cost = CostModel() if config.cost_model is None else cost_model_from_json(_read(config.cost_model))
        return cls(
            config.name,
            num_blocks=max(1, config.kv_memory // (TOKEN_BYTES * config.block_size)),
            block_size=config.block_size,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
            context=config.context or CONTEXT,
            adapters=tuple(config.adapters),
            cost=cost,
        )


class ReplicaHouse:
    """Built and used in the context of its process. Ends with it: nothing is closed."""

    def __init__(
        self,
        spec: ReplicaSpec,
        loop: HeapLoop,
        random: Random,
        faults: FaultSource = no_fault,
        memory: Callable[[], Memory | None] = no_limit,
    ) -> None:
        self.spec = spec
        self._heap = loop
        self._clock = EngineClock(loop)
        self.replica = replica = _replica(spec, self._clock, faults)
        self.adapters = replica.adapters
        self.step_loop = StepLoop(replica.scheduler, replica.engine)
        self.engine = EnginePump(self.step_loop, self._clock, self._hand_over, loop)
        settings = ServiceSettings(max_waiting=spec.max_waiting)
        validator = Validator(Limits(replica.context, replica.words.vocab_size))
        seats = Seats(spec.max_running, spec.max_waiting)
        self.desk = new_desk(replica.scheduler, spec.max_waiting, replica.prices, random.random)
        self.reception = self._reception(validator, seats, random)
        self.board = LoadBoard(
            replica.lane.revision,
            replica.adapters,
            self.desk,
            self._clock,
            seats,
            load_of(replica.scheduler, Meter(self._clock)),
            max_watchers=settings.max_watchers,
        )
        self.generator = Generator(
            self.engine,
            replica.scheduler,
            self.reception,
            validator,
            self.board,
            self.desk,
            self._clock,
            stream_bytes=settings.stream_bytes,
            piece_gap=settings.piece_gap,
            stall_seconds=settings.stall_seconds,
            memory=MemoryGuard(memory, self._clock),
        )
        self.service = SpecialistService(
            replica, settings, validator, self.generator, self.board, self._tell_health, Page()
        )
        self._health: Any = health.aio.HealthServicer()
        self.port = Port()
        self.port.add_generic_rpc_handlers((self.service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.port)
        self.on_failure: Callable[[], None] | None = None
        """Called when the engine has died or will not run: a process would end."""

    def _reception(self, validator: Validator, seats: Seats, random: Random) -> Reception:
        replica = self.replica
        return Reception(
            replica.lane,
            replica.scheduler,
            replica.words,
            Forms(replica.grammars),
            replica.adapters,
            validator,
            self._clock,
            max_receiving=seats.total,
            draw_seed=lambda: random.getrandbits(_SEED_BITS),
        )

    async def start(self) -> None:
        """A process that is not warm ends."""
        await self._tell_health()
        try:
            accounts = warm_up(self.replica, self.step_loop)
        except NotWarm:
            self._fail()
            return
        for account in accounts:
            account.book(self.desk)
        await asyncio.sleep(self.spec.warm_seconds + self._clock.take())
        self.engine.start()
        self.generator.open()
        await self._tell_health()

    def _hand_over(self, handover: Handover) -> None:
        self._heap.call_soon_threadsafe(self._deliver, handover)

    def _deliver(self, handover: Handover) -> None:
        self.generator.deliver(handover)
        if handover.load is not None:
            self.board.post(handover.load)
        if handover.died:
            self._fail()

    def _fail(self) -> None:
        if self.on_failure is not None:
            self.on_failure()

    async def _tell_health(self) -> None:
        status = _SERVING if self.generator.door == "open" else _NOT_SERVING
        await self._health.set("", status)
        await self._health.set(NAME, status)


def _replica(spec: ReplicaSpec, clock: EngineClock, faults: FaultSource) -> Replica:
    lane = Lane(spec.specialist, REVISION)
    settings = ReplicaSettings(spec.specialist, "sim", max_running=spec.max_running, itl_seconds=spec.itl_seconds)
    pool = BlockPool(spec.num_blocks + 1, spec.block_size, prefix_cache=spec.prefix_cache)
    engine = (spec.engine or _arithmetic)(spec, clock, faults)
    words = SimWords()
    return Replica(
        lane=lane,
        scheduler=new_scheduler(pool, lane, settings, clock, kv_dtype="sim"),
        engine=engine,
        clock=clock,
        words=words,
        grammars=_grammars(),
        adapters=NamedAdapters(spec.adapters),
        engine_name="sim",
        model=wire.Model(name="sim", architecture="sim", vocab_size=words.vocab_size, context=spec.context),
        kernels=(),
        prices=prices_of(spec.cost),
        context=min(spec.context, pool.num_slots),
    )


def _arithmetic(spec: ReplicaSpec, clock: EngineClock, faults: FaultSource) -> Engine:
    blocks = spec.num_blocks + 1
    return SimEngine(spec.model, spec.cost, clock, num_blocks=blocks, block_size=spec.block_size, faults=faults)


def _read(path: str) -> str:
    return Path(path).read_text()


@lru_cache(maxsize=1)
def _grammars() -> Grammars:
    """Shared: nothing of a run is kept in them."""
    vocabulary = sim_vocabulary()
    return Grammars(vocabulary, vocabulary.tokenizer.get_vocab_size())
