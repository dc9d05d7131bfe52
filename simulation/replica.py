"""A simulated replica process: the real server, scheduler and pool without sockets and threads."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random

from grpc_health.v1 import health_pb2_grpc

from kvpool import BlockPool
from octet.config.ensemble import SpecialistConfig
from octet.identity import Lane, digest_parts
from octet.rpc.memory import MemoryGuard, MemoryUsage
from octet.v1 import specialist_pb2 as wire
from simulation.event_loop import EngineClock, HeapLoop
from simulation.network import Port
from specialist.adapters.catalog import SimAdapters, check_digest
from specialist.engines.base import Completion, Engine
from specialist.engines.sim.engine import CostModel, FaultSource, SimEngine, SimModel, cost_model_from_json, no_faults
from specialist.engines.sim.vocabulary import NUM_SAMPLED, sim_vocabulary
from specialist.scheduling.loop import prices_from_cost_model
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.step import Step
from specialist.server.engine_thread import Command, EngineReport, EngineThread
from specialist.server.replica import SIM_CONTEXT, TOKEN_BYTES, AssembledReplica, create_scheduler
from specialist.server.server import WarmUpFailed, warm_up
from specialist.server.service import SpecialistService
from specialist.server.settings import ReplicaSettings, ServiceSettings
from specialist.text.codec import VocabularyCodec
from specialist.text.prompt import ChatTurn, OfferedTool, ToolOffer, ToolsUnsupported
from specialist.text.structured_output import GrammarCache
from specialist.text.tool_call_reader import ToolCalling

_MOST_ADAPTERS = 32
_TURN_ID = NUM_SAMPLED + 256  # no text has this token
REVISION = digest_parts([b"simulation", str(NUM_SAMPLED).encode()]).hex()
MODEL = SimModel(NUM_SAMPLED)


class NamedAdapters(SimAdapters):
    def __init__(self, names: tuple[str, ...] = ()) -> None:
        super().__init__(_MOST_ADAPTERS)
        for name in names:
            self.load(name, Path(name))

    def load(self, name: str, directory: Path, pinned: str = "") -> str:
        digest = adapter_digest(directory.name)
        check_digest(name, digest, pinned)
        with self._lock:
            self._names[name] = digest
        return digest


def adapter_digest(name: str) -> str:
    return digest_parts([b"adapter", name.encode()]).hex()


class SimCodec(VocabularyCodec):
    """Encodes printable text faster than the tokenizer does, and renders conversations without another process."""

    def __init__(self) -> None:
        vocabulary = sim_vocabulary()
        super().__init__(replace(vocabulary, chat_template=None), _TURN_ID + 1)
        self.grammars = GrammarCache(vocabulary, vocabulary.tokenizer.get_vocab_size())
        self._printable = {self.detokenizer().push((token,)): token for token in range(NUM_SAMPLED - 1)}

    def encode(self, text: str) -> tuple[int, ...]:
        try:
            return tuple([self._printable[character] for character in text])
        except KeyError:
            return super().encode(text)

    def render(self, messages: Sequence[ChatTurn], tools: Sequence[OfferedTool] = ()) -> tuple[int, ...]:
        ids: list[int] = []
        for message in messages:
            ids += (_TURN_ID, *self.encode(f"{message.role}\n{message.content}"))
        return (*ids, _TURN_ID)

    def tool_calling(self, offer: ToolOffer) -> ToolCalling:
        raise ToolsUnsupported("a simulated replica supports no tools")


@lru_cache(maxsize=1)
def sim_codec() -> SimCodec:
    """Return the codec that all runs share: neither it nor its grammars hold the state of a run."""
    return SimCodec()


class EnginePump(EngineThread):
    """The engine thread without a thread: the start and the end of a step are events on the loop."""

    def __init__(
        self, loop: StepLoop, clock: EngineClock, deliver: Callable[[EngineReport], object], heap: HeapLoop
    ) -> None:
        super().__init__(loop, clock)
        self.deliver = deliver
        self._engine_clock = clock
        self._heap = heap
        self._next: asyncio.TimerHandle | None = None
        self._is_stepping = False
        self.busy_seconds = 0.0  # seconds of steps that have ended
        self.on_turn: Callable[[], None] | None = None  # called whenever the scheduler and the pool may have changed
        self.on_death: Callable[[Exception], None] | None = None

    @property
    def num_unread(self) -> int:
        return len(self._inbox)

    def start(self) -> None:
        self._look()

    def stop(self) -> None:
        self._stopping = True

    def _post(self, command: Command) -> bool:
        if self._dead:
            return False
        self._inbox.append(command)
        self._look()
        return True

    def _look(self) -> None:
        """Schedule the next reading of the inbox. While a step runs, do nothing: its end schedules a reading."""
        if self._is_stepping or self._dead:
            return
        if self._next is not None:
            self._next.cancel()
        self._next = self._heap.call_soon(self._guarded, self._begin)

    def _begin(self) -> None:
        self._next = None
        if not self._run_commands(wait=False):
            return
        step = self.step_loop.scheduler.assemble_step()
        if step is None:
            self._report_step(None)
            if self._served:
                self._next = self._heap.call_later(self.STUCK_SECONDS, self._guarded, self._begin)
            return
        self.stepping_since = self._clock.now()
        self._is_stepping = True
        completions = self.step_loop.complete(step)
        seconds = self._engine_clock.take()
        self._heap.call_later(seconds, self._guarded, lambda: self._end(step, completions, seconds))

    def _end(self, step: Step, completions: list[Completion], seconds: float) -> None:
        self._is_stepping = False
        self.stepping_since = None
        self.busy_seconds += seconds
        self.step_loop.settle(step, completions)
        self._report_step(step)
        self._look()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if self.on_death is not None:
                self.on_death(error)
            self._die()
        if self.on_turn is not None:
            self.on_turn()


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    specialist: str
    num_blocks: int = 512
    block_size: int = 16
    max_running: int = 16
    max_waiting: int = 256
    context: int = 4096
    adapters: tuple[str, ...] = ()
    cost: CostModel = field(default_factory=CostModel)  # time of a step
    prefix_cache: bool = True
    itl_seconds: float = 0.1
    warm_seconds: float = 0.3  # seconds from start to serving, without warm-up steps
    model: SimModel = MODEL
    engine: Callable[[CostModel, EngineClock], Engine] | None = None  # replaces the sim engine

    @classmethod
    def from_config(cls, config: SpecialistConfig) -> "ReplicaSpec":
        """Configure the replica as `octet serve` would with the sim engine. Raises OSError or CalibrationInvalid."""
        cost = CostModel()
        if config.cost_model is not None:
            cost = cost_model_from_json(Path(config.cost_model).read_text())
        return cls(
            config.name,
            num_blocks=max(1, config.kv_memory // (TOKEN_BYTES * config.block_size)),
            block_size=config.block_size,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
            context=config.context or SIM_CONTEXT,
            adapters=tuple(config.adapters),
            cost=cost,
        )


class SimulatedReplica(SpecialistService):
    """A replica. Create and use it inside `Process.context` of its simulated process, and drop it with that process."""

    engine: EnginePump

    def __init__(
        self,
        spec: ReplicaSpec,
        loop: HeapLoop,
        random: Random,
        faults: FaultSource = no_faults,
        memory: Callable[[], MemoryUsage | None] = lambda: None,
    ) -> None:
        self.spec = spec
        self._clock = clock = EngineClock(loop)
        replica = _assemble(spec, clock, faults)
        step_loop = StepLoop(replica.scheduler, replica.engine)
        engine = EnginePump(step_loop, clock, lambda report: loop.call_soon(self.handler.deliver, report), loop)
        settings = ServiceSettings(max_waiting=spec.max_waiting)
        super().__init__(replica, settings, engine, random, MemoryGuard(memory, clock))
        self.handler.on_death = lambda: self.on_failure()  # noqa: PLW0108 - it may be replaced later
        self.port = Port()
        self.port.add_generic_rpc_handlers((self.grpc_handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.port)
        self.on_failure: Callable[[], None] = lambda: None  # called when the engine has died or cannot start

    async def start(self) -> None:
        """Start the replica. If the warm-up fails, call `on_failure`."""
        await self.publish_health()
        try:
            reports = warm_up(self.replica, self.engine.step_loop)
        except WarmUpFailed:
            self.on_failure()
            return
        await asyncio.sleep(self.spec.warm_seconds + self._clock.take())
        await self.open(reports)


def _assemble(spec: ReplicaSpec, clock: EngineClock, faults: FaultSource) -> AssembledReplica:
    lane, codec = Lane(spec.specialist, REVISION), sim_codec()
    settings = ReplicaSettings(spec.specialist, "sim", max_running=spec.max_running, itl_seconds=spec.itl_seconds)
    pool = BlockPool(spec.num_blocks + 1, spec.block_size, prefix_cache=spec.prefix_cache)
    if spec.engine is None:
        sizes = {"num_blocks": spec.num_blocks + 1, "block_size": spec.block_size}
        engine: Engine = SimEngine(spec.model, spec.cost, clock, **sizes, faults=faults)
    else:
        engine = spec.engine(spec.cost, clock)
    return AssembledReplica(
        lane=lane,
        scheduler=create_scheduler(pool, lane, settings, clock, kv_dtype="sim"),
        engine=engine,
        clock=clock,
        codec=codec,
        grammars=codec.grammars,
        adapters=NamedAdapters(spec.adapters),
        engine_name="sim",
        model=wire.Model(name="sim", architecture="sim", vocab_size=codec.vocab_size, context=spec.context),
        kernels=(),
        prices=prices_from_cost_model(spec.cost),
        context=min(spec.context, pool.num_slots),
    )
