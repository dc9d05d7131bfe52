"""The C++ decoder with a checkpoint, for tests."""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from specialist.adapters.adapter import Adapter
from specialist.engines.native.engine import StepBatch
from specialist.engines.native.fused_decoder import FusedDecoder
from specialist.models.checkpoint import Checkpoint
from specialist.models.demo import cache_directory
from specialist.ops.cpu.library import build, load_library
from specialist.ops.cpu.packed_weights import pack_checkpoint
from tests.native.greedy_replica import GreedyReplica


@lru_cache
def kernels() -> Any:
    """Return the kernels. They are compiled once, into the cache that `make serve` uses."""
    return load_library(build(cache_directory()))


def fused_decoder(checkpoint: Checkpoint, folder: Path, **changes: Any) -> FusedDecoder:
    """Pack the weights into `folder` and return a decoder for them."""
    settings = {"num_blocks": 120, "block_size": 8, "max_tokens": 256, "threads": 1, **changes}
    return FusedDecoder(checkpoint.config, pack_checkpoint(checkpoint, folder), kernels(), **settings)


def cache_views(decoder: FusedDecoder) -> tuple[Any, Any]:
    """Return views of the keys and values, each of shape [layers, blocks, ...]."""
    shape = (len(decoder.config.attention_layers), decoder.num_blocks, decoder.block_size * decoder.config.kv_size)
    dtype = np.dtype(decoder.kv_dtype)
    views = []
    for read in (decoder._library.octet_keys, decoder._library.octet_values):
        raw = (ctypes.c_uint8 * (int(np.prod(shape)) * dtype.itemsize)).from_address(read(decoder._handle))
        views.append(np.frombuffer(memoryview(raw).cast("B"), dtype).reshape(shape))
    return views[0], views[1]


class _LogitsKeeper:
    """Wraps a decoder so that its logits remain valid after the next step."""

    def __init__(self, decoder: FusedDecoder) -> None:
        self.num_blocks, self.block_size, self.device = decoder.num_blocks, decoder.block_size, decoder.device
        self.decoder = decoder
        self.config, self.kv_memory = decoder.config, decoder.kv_memory
        self.layout, self.replay = decoder.layout, decoder.replay
        self.read_block, self.write_block = decoder.read_block, decoder.write_block
        self.to_host = decoder.to_host

    def forward(self, batch: StepBatch, adapters: Sequence[Adapter]) -> Tensor:
        return self.decoder.forward(batch, adapters).clone()

    def zero(self, slots: Sequence[int]) -> None:
        self.decoder.zero(slots)


class FusedReplica(GreedyReplica):
    def __init__(self, decoder: FusedDecoder, **settings: Any) -> None:
        super().__init__(cast(Any, _LogitsKeeper(decoder)), **settings)
        self.fused = decoder

    def poison(self) -> None:
        held = {slot for seq in self.scheduler.running for slot in seq.running_table().slots(0, seq.num_computed)}
        size, config = self.fused.block_size, self.fused.config
        free = [slot for slot in range(self.fused.num_blocks * size) if slot not in held]
        blocks, offsets = np.array(free) // size, np.array(free) % size
        keys, values = cache_views(self.fused)
        heads = (len(config.attention_layers), self.fused.num_blocks, config.num_kv_heads)
        for layer in range(len(config.attention_layers)):
            keys.reshape(*heads, config.head_dim, size)[layer, blocks, :, :, offsets] = np.nan
            values.reshape(*heads, size, config.head_dim)[layer, blocks, :, offsets] = np.nan
