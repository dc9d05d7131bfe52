"""From a checkpoint to an engine that runs it, on the best kernels this machine has."""

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch

from specialist.adapters.slots import DeviceSlots
from specialist.adapters.store import AdapterStore
from specialist.engines.native.decoder import Decoder
from specialist.engines.native.engine import NativeEngine, Sample
from specialist.engines.native.fused_decoder import FusedDecoder
from specialist.engines.native.kernels import TORCH_KERNELS, Choice, choose_kernel
from specialist.engines.native.settings import KVType, NativeSettings
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.models.progress import Progress, silent
from specialist.models.weight import Affine
from specialist.ops.cpu.build import BuildFailed, build
from specialist.ops.cpu.library import load_library
from specialist.ops.cpu.prepare import prepare
from specialist.ops.cpu.prepared import Prepared
from specialist.ops.cpu.sampler import FusedSampler
from specialist.ops.sampling.reference import sample

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Native:
    engine: NativeEngine
    decoder: Decoder
    adapters: AdapterStore
    choice: Choice
    kv_dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What all engines of a model on this machine have in common. Making it starts no threads."""

    library: Any | BuildFailed
    choice: Choice
    prepared: Prepared | None
    """For the fused kernel."""


def create_native(
    checkpoint: Checkpoint, settings: NativeSettings, progress: Progress = silent, shared: Shared | None = None
) -> Native:
    """Raises ValueError for a device or type that is not to be had, OSError for a cache that cannot be written,
    MemoryError for a pool that does not fit."""
    _check_device(settings)
    shared = shared or share(checkpoint, settings, try_kernels(checkpoint, settings), progress)
    if shared.prepared is not None:
        made = _fused(checkpoint, settings, shared.library, shared.prepared)
    else:
        made = _torch(checkpoint, settings, shared.choice)
    return _with(made, checkpoint, settings, shared)


def try_kernels(checkpoint: Checkpoint, settings: NativeSettings) -> Choice:
    """Times them, where none is asked for: whatever else runs meanwhile may change the outcome."""
    library = _library(settings)
    choice = choose_kernel(checkpoint.weights["layers.0.gate"], library, settings.kernel, settings.device)
    _log.info("matrices are multiplied by the %s kernel; tried: %s", choice.kernel, choice.why)
    return choice


def share(checkpoint: Checkpoint, settings: NativeSettings, choice: Choice, progress: Progress = silent) -> Shared:
    prepared = prepare(checkpoint, settings.cache, progress) if choice.kernel == "fused" else None
    return Shared(_library(settings), choice, prepared)


def _with(made: tuple[Decoder, str], checkpoint: Checkpoint, settings: NativeSettings, shared: Shared) -> Native:
    decoder, kv_dtype = made
    choice = shared.choice
    store = AdapterStore(checkpoint.config, settings.max_adapters)
    if isinstance(decoder, FusedDecoder):
        store.when_unused(decoder.drop_adapter)
    slots = DeviceSlots(settings.adapter_slots, decoder.device, _compute_type(settings, choice))
    draw_tokens: Sample = sample if shared.prepared is None else FusedSampler(shared.library)
    return Native(NativeEngine(decoder, store, slots, draw_tokens), decoder, store, choice, kv_dtype)


def _check_device(settings: NativeSettings) -> None:
    kind = settings.device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {settings.device!r:.80}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but PyTorch finds no CUDA device here: use cpu")
    if kind == "cpu" and settings.dtype != "float32":
        raise ValueError(f"dtype {settings.dtype} is for cuda: on a CPU everything is computed in float32")


def _library(settings: NativeSettings) -> Any | BuildFailed:
    """Compiled only where it may be used."""
    if torch.device(settings.device).type != "cpu" or settings.kernel not in ("auto", "fused"):
        return BuildFailed("not asked for")
    try:
        return load_library(build(settings.cache))
    except BuildFailed as failure:
        if settings.kernel == "fused":
            raise
        _log.warning("the fast CPU kernels cannot be built: %s", failure)
        return failure


def _fused(checkpoint: Checkpoint, settings: NativeSettings, library: Any, prepared: Prepared) -> tuple[Decoder, str]:
    torch.set_num_threads(1)  # it only fills in: threads of its own would spin beside the kernels'
    kv_dtype = _half_if_quantised(checkpoint) if settings.kv_dtype == "auto" else settings.kv_dtype
    decoder = FusedDecoder(
        checkpoint.config,
        prepared,
        library,
        num_blocks=_num_blocks(checkpoint, settings, kv_dtype),
        block_size=settings.block_size,
        max_tokens=settings.max_tokens,
        threads=_threads(settings),
        kv_dtype=kv_dtype,
        adapter_bytes=settings.adapter_bytes,
    )
    return decoder, kv_dtype


def _torch(checkpoint: Checkpoint, settings: NativeSettings, choice: Choice) -> tuple[Decoder, str]:
    torch.set_num_threads(_threads(settings))
    kv_dtype = settings.dtype
    decoder = TorchDecoder(
        checkpoint,
        num_blocks=_num_blocks(checkpoint, settings, kv_dtype),
        block_size=settings.block_size,
        device=settings.device,
        dtype=getattr(torch, settings.dtype),
        linear=TORCH_KERNELS[choice.kernel],
    )
    return decoder, kv_dtype


def _half_if_quantised(checkpoint: Checkpoint) -> KVType:
    return "float16" if isinstance(checkpoint.weights["layers.0.gate"], Affine) else "float32"


def _num_blocks(checkpoint: Checkpoint, settings: NativeSettings, kv_dtype: str) -> int:
    if settings.num_blocks is not None:
        return settings.num_blocks
    config = checkpoint.config
    token_bytes = 2 * config.num_layers * config.kv_size * getattr(torch, kv_dtype).itemsize
    fits = settings.kv_bytes // (token_bytes * settings.block_size)
    if fits < 2:
        needed = 2 * token_bytes * settings.block_size
        raise MemoryError(f"kv_bytes {settings.kv_bytes:,} is less than two blocks of this model need, {needed:,}")
    return int(fits)


def _threads(settings: NativeSettings) -> int:
    return settings.threads or len(os.sched_getaffinity(0))


def _compute_type(settings: NativeSettings, choice: Choice) -> torch.dtype:
    return torch.float32 if choice.kernel == "fused" else getattr(torch, settings.dtype)
