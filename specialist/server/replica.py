"""The parts of a replica, and their assembly from settings."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from admission.forecast.estimates import StepPrices
from admission.policy import PrefillHold
from kvpool import BlockPool, HostCache
from octet.clock import Clock
from octet.identity import Lane, digest_parts
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import AdapterCatalog, SimAdapters
from specialist.engines.base import Engine
from specialist.engines.native.settings import DEFAULT_KV_BYTES
from specialist.engines.sim.engine import (
    CostModel,
    FaultSource,
    SimEngine,
    SimHostMemory,
    SimModel,
    cost_model_from_json,
    no_faults,
)
from specialist.engines.sim.vocabulary import NUM_SAMPLED, sim_vocabulary
from specialist.models.progress import Progress, silent
from specialist.scheduling.copied_text import LaneTexts
from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.drafting import DraftProposer
from specialist.scheduling.ledger import PureAttention
from specialist.scheduling.loop import prices_from_cost_model
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.step import TimedBudget
from specialist.server.settings import MIN_CONTEXT, ReplicaSettings
from specialist.text.codec import VocabularyCodec
from specialist.text.structured_output import GrammarCache

if TYPE_CHECKING:
    from specialist.server.native_replica import SharedModel

MAX_STEP_TOKENS = 512
_FIRST_CHUNK_TOKENS = 64
GPU_STEP_TOKENS, _GPU_FIRST_CHUNK_TOKENS = 8192, 1024
SIM_CONTEXT = 8192
TOKEN_BYTES = 16 << 10  # KV bytes per token of the sim engine, as in a small real model
_MAX_SIM_ADAPTERS = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class AssembledReplica:
    lane: Lane
    scheduler: Scheduler
    engine: Engine
    clock: Clock  # the scheduler's clock
    codec: VocabularyCodec
    grammars: GrammarCache
    adapters: AdapterCatalog
    engine_name: str
    model: wire.Model
    kernels: tuple[wire.Kernel, ...]  # the kernels that compute, and why each was chosen
    prices: StepPrices | None  # calibrated step costs, if there are any
    context: int  # tokens, prompt and answer together; limited by the model and by the pool
    draft_window: int = 0  # the most tokens that a step guesses ahead for a request
    proposer: DraftProposer | None = None  # the scheduler's; None if it guesses none


def assemble_replica(
    settings: ReplicaSettings, clock: Clock, progress: Progress = silent, shared: "SharedModel | None" = None
) -> AssembledReplica:
    """Raises ValueError (such as AdapterRefused), OSError, BuildFailed or MemoryError; each message gives advice."""
    if settings.engine == "sim":
        cost_model = settings.cost_model
        cost = CostModel() if cost_model is None else cost_model_from_json(cost_model.read_text())
        replica = create_sim_replica(settings, clock, cost)
    else:
        from specialist.server.native_replica import create_native_replica  # imports torch

        replica = create_native_replica(settings, clock, progress, shared)
    for name, directory in settings.adapters.items():
        replica.adapters.load(name, directory, settings.adapter_digests.get(name, ""))
    return replica


def create_scheduler(
    pool: BlockPool,
    lane: Lane,
    settings: ReplicaSettings,
    clock: Clock,
    kv_dtype: str,
    *,
    mixes_adapters: bool = False,
    runs_ahead: bool = False,
    states: PureAttention | None = None,
    max_running: int | None = None,
    proposer: DraftProposer | None = None,
) -> Scheduler:
    """`max_running`: fewer than configured, if memory limits it."""
    first, most = _FIRST_CHUNK_TOKENS, MAX_STEP_TOKENS
    if settings.engine == "native" and settings.device != "cpu":
        first, most = _GPU_FIRST_CHUNK_TOKENS, GPU_STEP_TOKENS
    config = SchedulerConfig(
        lane,
        kv_dtype=kv_dtype,
        max_running=max_running or settings.max_running,
        max_step_tokens=most,
        mixes_adapters=mixes_adapters,
        runs_ahead=runs_ahead,
    )
    budget = TimedBudget(settings.itl_seconds, first_guess=first, most=most)
    hold = PrefillHold(settings.itl_seconds)
    return Scheduler(pool, config, clock, budget=budget, states=states, proposer=proposer, hold=hold)


def create_proposer(settings: ReplicaSettings, model: DraftModel | None = None) -> DraftProposer | None:
    """Return what proposes drafts to the replica's scheduler; None if it is to guess none."""
    if not settings.draft_window:
        return None
    return DraftProposer(LaneTexts() if settings.draft_lane else None, model, settings.itl_seconds)


def create_sim_replica(
    settings: ReplicaSettings, clock: Clock, cost: CostModel, *, faults: FaultSource = no_faults
) -> AssembledReplica:
    """Create a replica without weights: it computes tokens by a formula and takes the time that `cost` states."""
    vocabulary = sim_vocabulary()
    codec = VocabularyCodec(vocabulary, vocabulary.tokenizer.get_vocab_size())
    lane = Lane(settings.name, digest_parts([b"sim", str(NUM_SAMPLED).encode()]).hex())
    context = settings.context or SIM_CONTEXT
    size = settings.block_size
    num_blocks = settings.num_blocks or max(1, (settings.kv_bytes or DEFAULT_KV_BYTES) // (TOKEN_BYTES * size))
    engine = SimEngine(SimModel(NUM_SAMPLED), cost, clock, num_blocks=num_blocks + 1, block_size=size, faults=faults)
    num_spilled = settings.spill_bytes // (TOKEN_BYTES * size)
    host = HostCache(num_spilled, SimHostMemory(engine.memory, num_spilled)) if num_spilled else None
    pool = BlockPool(num_blocks + 1, size, prefix_cache=settings.prefix_cache, host=host)
    proposer = create_proposer(settings)
    return AssembledReplica(
        lane=lane,
        scheduler=create_scheduler(pool, lane, settings, clock, kv_dtype="sim", proposer=proposer),
        engine=engine,
        clock=clock,
        codec=codec,
        grammars=GrammarCache(vocabulary, codec.vocab_size),
        adapters=SimAdapters(_MAX_SIM_ADAPTERS),
        engine_name="sim",
        model=wire.Model(name="sim", architecture="sim", vocab_size=codec.vocab_size, context=context),
        kernels=(wire.Kernel(op="all", choice="arithmetic", why="the sim engine has no weights"),),
        prices=prices_from_cost_model(cost),
        context=min(context, pool.num_slots),
        draft_window=settings.draft_window,
        proposer=proposer,
    )


def check_context(replica: AssembledReplica, requested: int | None) -> None:
    """Warn if the pool is too small for the context. Raises ValueError if no request would fit at all."""
    wanted = requested or replica.model.context
    if replica.context < MIN_CONTEXT:
        raise ValueError(
            f"the context is {replica.context} tokens and must be at least {MIN_CONTEXT}: "
            f"give the KV pool more memory with --kv-blocks or --kv-memory"
        )
    if replica.context < wanted:
        _log.warning(
            "the context is %s tokens, not %s: more do not fit into the KV pool (--kv-blocks, --kv-memory)",
            f"{replica.context:,}",
            f"{wanted:,}",
        )
