"""Creates a draft model beside its larger model: on the same device, from the same memory for keys and values."""

import logging
from dataclasses import replace
from typing import NamedTuple

import torch

from kvpool import BlockPool
from octet.clock import Clock
from octet.identity import Lane
from specialist.engines.native.create import (
    KernelChoice,
    NativeParts,
    SharedParts,
    create_native,
    prepare_shared,
    try_kernels,
    usual_matrix,
)
from specialist.engines.native.gpu_engine import GpuEngine
from specialist.engines.native.gpu_memory import LEAST_BLOCKS
from specialist.engines.native.settings import DEFAULT_KV_BYTES, NativeSettings
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.models.progress import Progress, silent
from specialist.models.weights import Affine
from specialist.scheduling.draft_model import DraftModel

_CHUNK, _GPU_CHUNK = 128, 2048  # tokens that a draft model reads in one step
_log = logging.getLogger(__name__)


class ModelPair(NamedTuple):
    """Two models whose pools have the same number of blocks."""

    large: NativeParts
    draft: NativeParts


def create_pair(
    checkpoint: Checkpoint,
    draft: Checkpoint,
    settings: NativeSettings,
    progress: Progress = silent,
    shared: SharedParts | None = None,
) -> ModelPair:
    """Create both engines in the memory that `settings` give to one. Raises as `create_native` does."""
    if settings.device != "cpu" and settings.num_blocks is None and settings.kv_bytes is None:
        return _create_on_card(checkpoint, draft, settings, progress, shared)
    shared = shared or prepare_shared(checkpoint, settings, try_kernels(checkpoint, settings), progress)
    if settings.num_blocks is None:
        mine, others = (_token_bytes(each, settings, shared.choice) for each in (checkpoint, draft))
        kv_bytes = settings.kv_bytes or DEFAULT_KV_BYTES
        if mine:
            settings = replace(settings, kv_bytes=kv_bytes * mine // (mine + others))
        else:  # only the draft model has keys and values
            settings = replace(settings, num_blocks=max(LEAST_BLOCKS, kv_bytes // (others * settings.block_size)))
    large = create_native(checkpoint, settings, progress, shared)
    own = _draft_settings(settings, large.choice, large.engine.decoder.num_blocks)
    return ModelPair(large, create_native(draft, own, progress))


def _create_on_card(
    checkpoint: Checkpoint, draft: Checkpoint, settings: NativeSettings, progress: Progress, shared: SharedParts | None
) -> ModelPair:
    """Load the draft model first, so that the large one fits its pool into what is left; then divide this pool."""
    if checkpoint.config.kv_token_size == 0:
        raise ValueError("a model without attention takes no draft model on a GPU: leave out draft_model")
    kernel = KernelChoice(settings.kernel, "configured") if settings.kernel != "auto" else KernelChoice("triton", "")
    small = create_native(draft, _draft_settings(settings, kernel, LEAST_BLOCKS), progress)
    large = create_native(checkpoint, settings, progress, shared)
    decoders = [parts.engine.decoder for parts in (large, small)]
    resizable = [decoder for decoder in decoders if isinstance(decoder, TorchDecoder)]
    block_bytes = [decoder.block_bytes for decoder in resizable]
    num_blocks = max(LEAST_BLOCKS, resizable[0].num_blocks * block_bytes[0] // sum(block_bytes))
    for decoder in resizable:
        decoder.resize(num_blocks)
    _log.info("KV pool: %s blocks for each of the model and its draft model", f"{num_blocks:,}")
    return ModelPair(large, small)


def _draft_settings(settings: NativeSettings, choice: KernelChoice, num_blocks: int) -> NativeSettings:
    """Return settings for the draft model. It has no adapters, and the same kernel if that computes any weights."""
    kernel = choice.kernel if choice.kernel in ("fused", "float32", "triton") else "auto"
    return replace(settings, num_blocks=num_blocks, kernel=kernel, adapter_bytes=0)


def _token_bytes(checkpoint: Checkpoint, settings: NativeSettings, choice: KernelChoice) -> int:
    """Return the bytes of a token's keys and values."""
    dtype: str = settings.dtype
    if choice.kernel == "fused":
        is_half = isinstance(usual_matrix(checkpoint), Affine)
        dtype = ("float16" if is_half else "float32") if settings.kv_dtype == "auto" else settings.kv_dtype
    return int(checkpoint.config.kv_token_size * getattr(torch, dtype).itemsize)


def draft_model(
    parts: NativeParts, checkpoint: Checkpoint, max_tokens: int, clock: Clock, *, prefix_cache: bool
) -> DraftModel:
    """Return the draft model of a pair. `max_tokens`: the most tokens that its engine computes at once."""
    engine, decoder = parts.engine, parts.engine.decoder
    return DraftModel(
        engine,
        BlockPool(decoder.num_blocks, decoder.block_size, prefix_cache=prefix_cache),
        Lane("draft", checkpoint.revision),
        clock,
        max_step_tokens=max_tokens,
        context=checkpoint.config.context,
        in_turn=engine if isinstance(engine, GpuEngine) else None,
        chunk=_GPU_CHUNK if isinstance(engine, GpuEngine) else _CHUNK,
    )
