"""What fits on a GPU: which models its kernels compute, and the KV pool that a replica's share leaves after weights,
graphs and a measured step."""

import logging
from collections.abc import Callable, Mapping
from itertools import accumulate
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specialist.engines.native.engine import StepBatch
from specialist.models.checkpoint import ModelConfig, expected_shapes
from specialist.ops.gpu.packing import kept_bits, packed_bytes
from specialist.ops.reference.sampling import SampleRow, sample
from specialist.scheduling.sequence import Sampling

MARGIN = 1 << 30  # for the CUDA context, graphs as the driver keeps them, and memory in fragments
LEAST_BLOCKS = 2  # the garbage block and one more
MOST_BLOCKS = 1 << 20  # the scheduler keeps an object for each
_ADAPTER_PART = 16  # adapters may take one part in 16 of a replica's share
_GIB = 1 << 30
_log = logging.getLogger(__name__)


class CardMemory(NamedTuple):
    """Bytes of a card."""

    total: int
    free: int  # for any process
    own: int  # weights, buffers and graphs of this process
    peak: int  # what the largest step needs beside them
    adapters: int  # kept for adapters

    @property
    def rest(self) -> int:
        """What a pool must leave free."""
        return self.peak + self.adapters + MARGIN


def plan_blocks(card: CardMemory, share: float, block_bytes: int, num_spare: int = 0) -> int:
    """Return the number of blocks that fit into `share` of the card, and into what other processes leave free; the
    decoder adds `num_spare` to it. Raises MemoryError if not even LEAST_BLOCKS fit."""
    by_share = int(share * card.total) - card.own - card.rest
    room = min(by_share, card.free - card.rest)
    blocks = room // block_bytes - num_spare
    if blocks < LEAST_BLOCKS:
        needed = (LEAST_BLOCKS + num_spare) * block_bytes + card.rest
        raise MemoryError(
            f"the KV pool does not fit: of {share:g} of a card of {_gib(card.total)}, weights and graphs take "
            f"{_gib(card.own)}; {_gib(card.free)} are free, and {_gib(needed)} are needed for two blocks, the largest "
            f"step, adapters and a margin: raise memory_fraction, or stop another process on this card"
        )
    return min(blocks, MOST_BLOCKS)


def allocate(resize: Callable[[int], None], wanted: int) -> int:
    """Allocate a pool of the wanted number of blocks, or of fewer if the card refuses: an eighth less at each attempt.
    Return the number. Raises MemoryError if even LEAST_BLOCKS are refused."""
    blocks = wanted
    while True:
        try:
            resize(blocks)
            return blocks
        except torch.OutOfMemoryError as refused:
            if blocks <= LEAST_BLOCKS:
                raise MemoryError(f"the card has no memory for a KV pool of {blocks} blocks") from refused
            _log.warning("the card has no memory for %s KV blocks: trying fewer", f"{blocks:,}")
        blocks = max(LEAST_BLOCKS, blocks * 7 // 8)


class ResizableDecoder(Protocol):
    config: ModelConfig
    device: torch.device
    block_size: int

    @property
    def block_bytes(self) -> int: ...

    @property
    def num_spare(self) -> int:
        """The number of blocks that do not belong to the pool."""

    def resize(self, num_blocks: int) -> None:
        """Replace the memory for keys and values. Raises torch.OutOfMemoryError; there is then no such memory."""

    def forward_alone(self, batch: StepBatch) -> Tensor:
        """The same as `forward`, in memory that no graph holds."""


def fit_pool(decoder: ResizableDecoder, share: float, *, adapters: int, max_tokens: int, max_rows: int) -> None:
    """Give the decoder the largest pool that fits into `share` of its card beside steps of `max_tokens` tokens and
    `max_rows` samples. `adapters`: bytes to keep for these. Raises MemoryError."""
    peak = _measure_peak(decoder, max_tokens, max_rows)
    free, total = torch.cuda.mem_get_info(decoder.device)
    card = CardMemory(total, free, torch.cuda.memory_reserved(decoder.device), peak, adapters)
    blocks = allocate(decoder.resize, plan_blocks(card, share, decoder.block_bytes, decoder.num_spare))
    _log.info(
        "KV pool: %s blocks, %s: of %g of %s (%s free), weights and graphs take %s, a step %s, adapters %s, margin %s",
        f"{blocks:,}",
        _gib(blocks * decoder.block_bytes),
        share,
        *map(_gib, (total, free, card.own, peak, adapters, MARGIN)),
    )


def _measure_peak(decoder: ResizableDecoder, max_tokens: int, max_rows: int) -> int:
    """Run a largest step, and sample from it. Return the bytes that the allocator needed for that."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(decoder.device)
    torch.cuda.reset_peak_memory_stats(decoder.device)
    logits = decoder.forward_alone(largest_batch(decoder, max_tokens, max_rows))
    sample(logits, [SampleRow(Sampling(temperature=1.0, top_p=0.9), 0, (0,), 1)] * len(logits))
    del logits
    torch.cuda.synchronize(decoder.device)
    peak = torch.cuda.max_memory_reserved(decoder.device) - before
    torch.cuda.empty_cache()
    return peak


def largest_batch(decoder: ResizableDecoder, max_tokens: int, max_rows: int) -> StepBatch:
    """Return prompts that fill a step, on block 0. Each has a sample."""
    context = decoder.config.context
    max_tokens = min(max_tokens, max_rows * context)
    lengths = [max_tokens // max_rows + (row < max_tokens % max_rows) for row in range(max_rows)]
    lengths = [length for length in lengths if length]
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    zeros = torch.zeros(max_tokens, dtype=torch.int32)
    positions = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
    tables = torch.zeros((len(lengths), -(-max(lengths) // decoder.block_size)), dtype=torch.int32)
    contexts = torch.tensor(lengths, dtype=torch.int32)
    return StepBatch(zeros, positions, zeros, starts, contexts, tables, starts[1:] - 1)


def plan_pages(total: int, share: float, page_bytes: int, most: int) -> int:
    """Return the number of pages of adapters that a replica may keep: `most`, halved until they fit."""
    pages = most
    while pages > 1 and bytes_of_pages(pages, page_bytes) > share * total / _ADAPTER_PART:
        pages //= 2
    return pages


def bytes_of_pages(pages: int, page_bytes: int) -> int:
    """Return what this number of pages needs. It grows by doubling, and half of it exists twice meanwhile."""
    return pages * 3 * page_bytes // 2


def why_unsupported(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Return why the kernels for GPUs cannot compute this model, or None."""
    if config.parts and not config.is_recurrent:
        return f"only PyTorch computes {config.architecture} models without recurrent layers on a GPU"
    size = padded_head(config)
    if config.is_recurrent and not config.attention_layers:
        return None
    if size != config.head_dim and config.qk_norm:
        return f"heads of {config.head_dim} elements with norms: the kernels take 32, 64, 128 or 256"
    if size < 32 or size > 256 or size & (size - 1):
        return f"heads of {size} elements: the kernels take 32, 64, 128 or 256"
    if size * dtype.itemsize > 512:
        return f"heads of {size} elements in {dtype}: a multiprocessor has too little memory for them"
    if config.is_recurrent:
        return None
    if config.hidden_size % 8 or config.intermediate_size % 8 or config.q_size % 8:
        return "a matrix whose columns are no multiple of 8"
    return None


def padded_head(config: ModelConfig) -> int:
    """Return the elements of a head as the kernels of a GPU take it: in models with recurrent layers, zeros follow
    where no kernel takes its size."""
    size = config.head_dim
    return max(32, 1 << (size - 1).bit_length()) if config.is_recurrent and size else size


def padded_kv(config: ModelConfig) -> int:
    """Return the elements of a token's keys and values with heads as `padded_head` has them."""
    return config.kv_token_size // max(1, config.head_dim) * padded_head(config)


def weight_bytes(config: ModelConfig, itemsize: int, bits: Mapping[str, int]) -> int:
    """Return the bytes of a model's matrices on a GPU. `bits`: of each quantised matrix of the file."""
    kept = kept_bits(bits) if itemsize == 2 else {}
    shapes = [(name, shape) for name, shape in expected_shapes(config) if len(shape) > 1]
    return sum(
        packed_bytes(shape[0], shape[1], kept[name]) if name in kept else itemsize * prod(shape)
        for name, shape in shapes
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB"
