"""A replica of a real model."""

from dataclasses import dataclass

import torch

from kvpool import BlockPool
from octet.clock import Clock
from octet.identity import Lane
from octet.supervise.apart import apart
from octet.v1 import specialist_pb2 as wire
from specialist.calibrated import calibrated_prices
from specialist.engines.native.create import Shared, create_native, share, try_kernels
from specialist.engines.native.kernels import Choice
from specialist.engines.native.settings import NativeSettings
from specialist.guide.grammars import Grammars
from specialist.models.checkpoint import Checkpoint
from specialist.models.config import ModelConfig
from specialist.models.demo import cache_directory, demo_model
from specialist.models.errors import ModelRefused
from specialist.models.open import open_checkpoint
from specialist.models.progress import Progress, silent
from specialist.service.replica import Replica
from specialist.service.scheduling import MAX_STEP_TOKENS, new_scheduler
from specialist.service.settings import ReplicaSettings
from specialist.service.vocabulary_words import VocabularyWords

_TRYING = "compiling and trying kernels"


@dataclass(frozen=True, slots=True, eq=False)
class SharedModel:
    """Everything replicas of one model can have in common, opened once and inherited by fork."""

    name: str
    checkpoint: Checkpoint
    words: VocabularyWords
    parts: Shared


def share_model(settings: ReplicaSettings, progress: Progress = silent) -> SharedModel:
    """Leaves no threads behind: kernels are tried in a process of their own. Raises as `native_replica` does."""
    path = settings.model or demo_model(cache_directory(), progress)
    native = native_settings(settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        checkpoint = open_checkpoint(path, progress)
        progress(_TRYING, 0, 1)
        kernel, why = apart(lambda: _tried(checkpoint, native))
        progress(_TRYING, 1, 1)
        parts = share(checkpoint, native, Choice(kernel, (), why), progress)
    finally:
        torch.set_num_threads(threads)
    words = VocabularyWords(checkpoint.vocabulary, checkpoint.config.vocab_size)
    return SharedModel(path.resolve().name, checkpoint, words, parts)


def _tried(checkpoint: Checkpoint, settings: NativeSettings) -> tuple[str, str]:
    choice = try_kernels(checkpoint, settings)
    return choice.kernel, choice.why


def native_replica(
    settings: ReplicaSettings, clock: Clock, progress: Progress = silent, shared: SharedModel | None = None
) -> Replica:
    """Raises ModelRefused, OSError, MemoryError, each saying what to do."""
    if shared is not None:
        return replica_of(shared.checkpoint, shared.name, settings, clock, progress, shared)
    path = settings.model or demo_model(cache_directory(), progress)
    return replica_of(open_checkpoint(path, progress), path.resolve().name, settings, clock, progress)


def replica_of(
    checkpoint: Checkpoint,
    model_name: str,
    settings: ReplicaSettings,
    clock: Clock,
    progress: Progress = silent,
    shared: SharedModel | None = None,
) -> Replica:
    context = _context(settings, checkpoint.config)
    made = create_native(checkpoint, native_settings(settings), progress, None if shared is None else shared.parts)
    lane = Lane(settings.name, checkpoint.revision)
    pool = BlockPool(made.decoder.num_blocks, made.decoder.block_size, prefix_cache=settings.prefix_cache)
    return Replica(
        lane=lane,
        scheduler=new_scheduler(pool, lane, settings, clock, made.kv_dtype),
        engine=made.engine,
        clock=clock,
        words=shared.words if shared else VocabularyWords(checkpoint.vocabulary, checkpoint.config.vocab_size),
        grammars=Grammars(checkpoint.vocabulary, checkpoint.config.vocab_size),
        adapters=made.adapters,
        engine_name="native",
        model=_model(model_name, checkpoint.config),
        kernels=(wire.Kernel(op="linear", choice=made.choice.kernel, why=made.choice.why),),
        prices=calibrated_prices(settings.cost_model),
        context=min(context, pool.num_slots),
    )


def _context(settings: ReplicaSettings, config: ModelConfig) -> int:
    if settings.context is None:
        return config.context
    if settings.context > config.context:
        raise ModelRefused(
            f"a context of {settings.context:,} tokens was asked for: "
            f"the model attends over {config.context:,}; ask for no more"
        )
    return settings.context


def native_settings(settings: ReplicaSettings) -> NativeSettings:
    return NativeSettings(
        cache=cache_directory(),
        block_size=settings.block_size,
        max_tokens=max(MAX_STEP_TOKENS, settings.max_running),
        num_blocks=None if settings.num_blocks is None else settings.num_blocks + 1,
        kv_bytes=settings.kv_bytes,
        device=settings.device,
        dtype=settings.dtype,
        kernel=settings.kernel,
        threads=settings.threads,
    )


def _model(name: str, config: ModelConfig) -> wire.Model:
    return wire.Model(
        name=name,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        context=config.context,
    )
