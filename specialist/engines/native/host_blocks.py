"""Host memory for KV blocks that the prefix cache evicts: pinned if the decoder is on a GPU."""

import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from kvpool import BlockCopy, HostCache
from specialist.models.checkpoint import ModelConfig

_MOST_STAGED = 32 << 20  # bytes that are copied at once
_FOR_ALL_CONTEXTS = 1  # cudaHostRegisterPortable
_log = logging.getLogger(__name__)


class CachingDecoder(Protocol):
    config: ModelConfig
    device: torch.device

    def kv_memory(self) -> Sequence[Tensor]:
        """Return the memory for keys and for values, [layers, blocks, ...]. It may be replaced until the first step."""


class HostBlocks:
    """The contents of blocks on the host. On a GPU, all copies run on the stream of the decoder's steps: after those
    that were launched before, and before those that are launched later. They wait for nothing else."""

    def __init__(self, decoder: CachingDecoder, capacity: int) -> None:
        """Raises MemoryError if the memory cannot be allocated, or not be pinned."""
        self._decoder = decoder
        block = torch.stack([cache[:, 0] for cache in decoder.kv_memory()])  # [keys and values, layers, ...]
        self._staged = max(1, _MOST_STAGED // block.nbytes)
        try:
            self._memory = torch.empty((capacity, *block.shape), dtype=block.dtype)
        except RuntimeError as error:
            raise MemoryError(f"spill_memory: the host has no {capacity * block.nbytes:,} bytes left") from error
        if decoder.device.type == "cuda":
            _pin(self._memory, decoder.device)
            weakref.finalize(self, _unpin, self._memory, decoder.device).atexit = False

    @torch.inference_mode()
    def spill(self, copies: Sequence[BlockCopy]) -> None:
        for part in _parts(copies, self._staged):
            blocks = self._on_device([copy.block_id for copy in part])
            staged = torch.stack([cache.index_select(1, blocks) for cache in self._decoder.kv_memory()])
            staged = staged.permute(2, 0, 1, *range(3, staged.dim())).contiguous()  # [copies, keys and values, ...]
            for copy, content in zip(part, staged, strict=True):
                self._memory[copy.place].copy_(content, non_blocking=True)

    @torch.inference_mode()
    def restore(self, copies: Sequence[BlockCopy]) -> None:
        for part in _parts(copies, self._staged):
            blocks = self._on_device([copy.block_id for copy in part])
            shape = (len(part), *self._memory.shape[1:])
            staged = torch.empty(shape, dtype=self._memory.dtype, device=self._decoder.device)
            for copy, content in zip(part, staged, strict=True):
                content.copy_(self._memory[copy.place], non_blocking=True)
            for cache, content in zip(self._decoder.kv_memory(), staged.unbind(1), strict=True):
                cache.index_copy_(1, blocks, content.transpose(0, 1))

    def _on_device(self, blocks: list[int]) -> Tensor:
        ids = torch.tensor(blocks)
        if self._decoder.device.type == "cpu":
            return ids
        return ids.pin_memory().to(self._decoder.device, non_blocking=True)


class HostCopies:
    """Copies of tensors on the host, pinned if these are on a GPU. They are copied on the stream of the decoder's
    steps. The memory of a copy that is gone serves the next of its size."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._unused: dict[int, list[Tensor]] = {}  # pinned, by the number of bytes
        self._pinned: dict[int, weakref.finalize[..., HostCopies]] = {}  # what unpins them, by address

    def copy(self, source: Tensor) -> Tensor:
        """Raises MemoryError if the host has no memory for it that can be pinned."""
        if self._device.type == "cpu" or source.nbytes == 0:  # memory without a byte cannot be pinned
            return source.cpu().clone()
        memory = self._take(source.nbytes)
        held = memory.view(source.dtype).view(source.shape)
        held.copy_(source, non_blocking=True)
        weakref.finalize(held, self._unused.setdefault(source.nbytes, []).append, memory).atexit = False
        return held

    def _take(self, num_bytes: int) -> Tensor:
        if unused := self._unused.get(num_bytes):
            return unused.pop()
        for others in self._unused.values():  # so that pinned memory does not exceed what all copies once took
            for memory in others:
                self._pinned.pop(memory.data_ptr())()
            others.clear()
        try:
            memory = torch.empty(num_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            raise MemoryError(f"the host has no {num_bytes:,} bytes left") from error
        _pin(memory, self._device)
        self._pinned[memory.data_ptr()] = unpins = weakref.finalize(self, _unpin, memory, self._device)
        unpins.atexit = False
        return memory


def _parts(copies: Sequence[BlockCopy], most: int) -> list[Sequence[BlockCopy]]:
    return [copies[first : first + most] for first in range(0, len(copies), most)]


def _pin(memory: Tensor, device: torch.device) -> None:
    """Lock the memory, so that a GPU copies to and from it by itself. PyTorch's own pinned memory would take a power
    of two of bytes."""
    error = int(_cuda_runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, _FOR_ALL_CONTEXTS))
    if error:
        with suppress(RuntimeError):  # PyTorch would report it after the next kernel that it launches
            torch.ones(1, device=device)
        raise MemoryError(f"the host cannot pin {memory.nbytes:,} bytes: CUDA error {error}")


def _cuda_runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _unpin(memory: Tensor, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a copy may still run
    _cuda_runtime().cudaHostUnregister(memory.data_ptr())


def host_cache(decoder: CachingDecoder, num_bytes: int) -> HostCache | None:
    """Return a host tier of this size; None without one, and for a model with recurrent layers, which has more than
    blocks to resume from. Raises MemoryError if not even one block fits."""
    if num_bytes == 0:
        return None
    if decoder.config.is_recurrent:
        _log.warning("spill_memory is not used: the model has recurrent layers")
        return None
    block_bytes = sum(cache[:, 0].nbytes for cache in decoder.kv_memory())
    if num_bytes < block_bytes:
        raise MemoryError(f"spill_memory: a block has {block_bytes:,} bytes, got {num_bytes:,}")
    capacity = num_bytes // block_bytes
    return HostCache(capacity, HostBlocks(decoder, capacity))
