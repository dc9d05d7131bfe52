"""A replica of a real model."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from kvpool import BlockPool, HostCache
from octet.clock import Clock
from octet.identity import Lane
from octet.supervisor.process import call_in_fork
from octet.v1 import specialist_pb2 as wire
from specialist.engines.native.create import KernelChoice, SharedParts, create_native, prepare_shared, try_kernels
from specialist.engines.native.draft_model import create_pair, draft_model
from specialist.engines.native.engine import Decoder
from specialist.engines.native.fused_decoder import FusedDecoder
from specialist.engines.native.host_blocks import host_cache
from specialist.engines.native.recurrent_state import RecurrentState, share_states
from specialist.engines.native.settings import NativeSettings
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint, ModelConfig
from specialist.models.checks import check_draft_model, check_model_context
from specialist.models.demo import cache_directory, demo_model
from specialist.models.hub import model_name
from specialist.models.open import open_checkpoint
from specialist.models.progress import Progress, silent
from specialist.scheduling.ledger import Hybrid, PureAttention
from specialist.scheduling.loop import load_calibrated_prices
from specialist.server.replica import (
    GPU_STEP_TOKENS,
    MAX_STEP_TOKENS,
    AssembledReplica,
    create_proposer,
    create_scheduler,
)
from specialist.server.settings import ReplicaSettings
from specialist.text.codec import VocabularyCodec
from specialist.text.structured_output import GrammarCache

_log = logging.getLogger(__name__)
_TRYING = "compiling and trying kernels"
# fields of a model's config that callers see
_MODEL_FIELDS = ("architecture", "vocab_size", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "context")


@dataclass(frozen=True, slots=True, eq=False)
class SharedModel:
    """Everything that replicas of one model share. It is opened once and inherited by fork."""

    name: str
    checkpoint: Checkpoint
    codec: VocabularyCodec
    parts: SharedParts


def share_model(settings: ReplicaSettings, progress: Progress = silent) -> SharedModel:
    """Open the model, but leave no thread running: the process forks next. Raises as `create_native_replica` does."""
    path = settings.model or demo_model(cache_directory(), progress)
    native = native_settings(settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        checkpoint = open_checkpoint(path, progress)
        progress(_TRYING, 0, 1)
        choice = KernelChoice(*call_in_fork(lambda: try_kernels(checkpoint, native)))
        progress(_TRYING, 1, 1)
        parts = prepare_shared(checkpoint, native, choice, progress)
    finally:
        torch.set_num_threads(threads)
    codec = VocabularyCodec(checkpoint.vocabulary, checkpoint.config.vocab_size)
    return SharedModel(model_name(path), checkpoint, codec, parts)


def create_native_replica(
    settings: ReplicaSettings, clock: Clock, progress: Progress = silent, shared: SharedModel | None = None
) -> AssembledReplica:
    """Raises ValueError (such as ModelRefused), OSError, BuildFailed or MemoryError; each message gives advice."""
    if shared is not None:
        return replica_from_checkpoint(shared.checkpoint, shared.name, settings, clock, progress, shared)
    path = settings.model or demo_model(cache_directory(), progress)
    return replica_from_checkpoint(open_checkpoint(path, progress), model_name(path), settings, clock, progress)


def open_draft(path: Path, checkpoint: Checkpoint, progress: Progress = silent) -> Checkpoint:
    """Open the draft model of a model. Raises ModelRefused, also if their vocabularies differ."""
    draft = open_checkpoint(path, progress)
    pairs = [(each.config, each.vocabulary) for each in (draft, checkpoint)]
    check_draft_model(pairs[0], pairs[1], model_name(path))
    return draft


def replica_from_checkpoint(
    checkpoint: Checkpoint,
    model_name: str,
    settings: ReplicaSettings,
    clock: Clock,
    progress: Progress = silent,
    shared: SharedModel | None = None,
    draft: Checkpoint | None = None,
) -> AssembledReplica:
    """`draft` is an opened draft model; by default, the one that the settings name is opened."""
    check_model_context(checkpoint.config, settings.context)
    context = settings.context or checkpoint.config.context
    native, parts = native_settings(settings), None if shared is None else shared.parts
    if draft is None and settings.draft_model is not None and settings.draft_window:
        draft = open_draft(settings.draft_model, checkpoint, progress)
    if draft is None:
        made, small = create_native(checkpoint, native, progress, parts), None
    else:
        made, small = create_pair(checkpoint, draft, native, progress, parts)
    lane = Lane(settings.name, checkpoint.revision)
    decoder = made.engine.decoder
    host = _host_cache(decoder, settings)
    pool = BlockPool(decoder.num_blocks, decoder.block_size, prefix_cache=settings.prefix_cache, host=host)
    states, max_running = _states(decoder, checkpoint.config, pool, settings)
    kernels = [wire.Kernel(op="linear", choice=made.choice.kernel, why=made.choice.why)]
    model = None
    if small is not None and draft is not None:
        model = draft_model(small, draft, native.max_tokens, clock, prefix_cache=settings.prefix_cache)
        kernels.append(wire.Kernel(op="draft model", choice=small.choice.kernel, why=small.choice.why))
    proposer = create_proposer(settings, model)
    return AssembledReplica(
        lane=lane,
        scheduler=create_scheduler(
            pool,
            lane,
            settings,
            clock,
            made.kv_dtype,
            mixes_adapters=made.engine.mixes_adapters,
            runs_ahead=made.engine.runs_ahead,
            states=states,
            max_running=max_running,
            proposer=proposer,
        ),
        engine=made.engine,
        clock=clock,
        codec=shared.codec if shared else VocabularyCodec(checkpoint.vocabulary, checkpoint.config.vocab_size),
        grammars=GrammarCache(checkpoint.vocabulary, checkpoint.config.vocab_size),
        adapters=made.engine.adapters,
        engine_name="native",
        model=wire.Model(name=model_name, **{field: getattr(checkpoint.config, field) for field in _MODEL_FIELDS}),
        kernels=tuple(kernels),
        prices=load_calibrated_prices(settings.cost_model),
        context=min(context, pool.num_slots),
        draft_window=settings.draft_window,
        proposer=proposer,
    )


def _states(
    decoder: Decoder, config: ModelConfig, pool: BlockPool, settings: ReplicaSettings
) -> tuple[PureAttention, int]:
    """Return what manages the sequences' states, and how many sequences may run."""
    if not config.is_recurrent:
        return PureAttention(pool), settings.max_running
    if not isinstance(decoder, TorchDecoder | FusedDecoder):
        raise TypeError(f"{type(decoder).__name__} computes no recurrent layers")
    shares = share_states(config, settings.state_bytes, settings.max_running)
    if shares.max_running < settings.max_running:
        _log.warning(
            "%s requests may run at once, not %s: more states do not fit into state_memory (--state-memory)",
            shares.max_running,
            settings.max_running,
        )
    saved = shares.saved if settings.prefix_cache else 0
    return Hybrid(pool, partial(RecurrentState, decoder), saved), shares.max_running


def _host_cache(decoder: Decoder, settings: ReplicaSettings) -> HostCache | None:
    if not isinstance(decoder, TorchDecoder | FusedDecoder):
        raise TypeError(f"{type(decoder).__name__} has no blocks to copy")
    return host_cache(decoder, settings.spill_bytes)


def native_settings(settings: ReplicaSettings) -> NativeSettings:
    return NativeSettings(
        cache=cache_directory(),
        block_size=settings.block_size,
        max_tokens=max(MAX_STEP_TOKENS if settings.device == "cpu" else GPU_STEP_TOKENS, settings.max_running),
        max_running=settings.max_running,
        num_blocks=None if settings.num_blocks is None else settings.num_blocks + 1,
        kv_bytes=settings.kv_bytes,
        memory_fraction=settings.memory_fraction,
        state_bytes=settings.state_bytes,
        device=settings.device,
        dtype=settings.dtype,
        kernel=settings.kernel,
        threads=settings.threads,
    )
