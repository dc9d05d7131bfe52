"""Draws tokens on the device: the most likely one, or one at random by temperature.

The random number of a draw is given, so a draw depends on seed and position alone. Every row is treated alike in any
batch: the vocabulary is summed in chunks of fixed size, chunk after chunk.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu.launch import start, wait

CHUNK = tl.constexpr(4096)


@triton.jit
def _summarise(
    logits, temperatures, peaks, places, sums, VOCAB: tl.constexpr, CHUNKS: tl.constexpr, CHAINED: tl.constexpr
):
    """For each chunk, find the largest logit, its lowest place, and the sum of weights relative to it."""
    start(CHAINED)
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    wait(CHAINED)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row.to(tl.int64) * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
    values = tl.where(values == values, values, float("inf"))  # a NaN is found as the largest
    peak = tl.max(values, axis=0)
    at = row * CHUNKS + chunk
    tl.store(peaks + at, peak)
    tl.store(places + at, tl.min(tl.where(values == peak, ids, VOCAB), axis=0))
    if temperature > 0.0:
        weights = tl.exp((values - peak) / temperature)
        tl.store(sums + at, tl.sum(tl.where(ids < VOCAB, weights, 0.0), axis=0))


@triton.jit
def _draw(
    logits, temperatures, uniforms, peaks, places, sums, tokens, highest,
    VOCAB: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    start(CHAINED)
    row = tl.program_id(0)
    temperature = tl.load(temperatures + row)
    wait(CHAINED)
    chunks = tl.arange(0, BLOCK)
    inside = chunks < CHUNKS
    own = tl.load(peaks + row * CHUNKS + chunks, mask=inside, other=float("-inf"))
    peak = tl.max(own, axis=0)
    where = tl.load(places + row * CHUNKS + chunks, mask=inside, other=VOCAB)
    token = tl.min(tl.where(own == peak, where, VOCAB), axis=0)
    if (temperature > 0.0) & (peak < float("inf")) & (peak > float("-inf")):
        sums_here = tl.load(sums + row * CHUNKS + chunks, mask=inside, other=0.0)
        weights = tl.where(own > float("-inf"), sums_here * tl.exp((own - peak) / temperature), 0.0)
        running = tl.cumsum(weights, axis=0)
        wanted = tl.load(uniforms + row) * tl.max(running, axis=0)
        chunk = tl.min(tl.where((running > wanted) & (weights > 0.0), chunks, BLOCK - 1), axis=0)
        chunk = tl.minimum(chunk, CHUNKS - 1)
        before = tl.max(tl.where(chunks < chunk, running, 0.0), axis=0)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = tl.load(logits + row.to(tl.int64) * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
        each = tl.where(ids < VOCAB, tl.exp((values - peak) / temperature), 0.0)
        inner = before + tl.cumsum(each, axis=0)
        last = tl.max(tl.where(each > 0.0, ids, 0), axis=0)
        token = tl.minimum(tl.min(tl.where((inner > wanted) & (each > 0.0), ids, VOCAB), axis=0), last)
    tl.store(tokens + row, tl.minimum(token, VOCAB - 1))
    tl.store(highest + row, peak)


class SampleSpace:
    def __init__(self, max_rows: int, vocab: int, device: torch.device) -> None:
        self.num_chunks = triton.cdiv(vocab, CHUNK.value)
        shape = (max_rows, self.num_chunks)
        self.peaks, self.sums = (torch.empty(shape, device=device) for _ in range(2))
        self.places = torch.empty(shape, dtype=torch.int32, device=device)


def draw(
    logits: Tensor,
    temperatures: Tensor,
    uniforms: Tensor,
    tokens: Tensor,
    peaks: Tensor,
    space: SampleSpace,
    *,
    chained: bool = False,
) -> None:
    """Write a token for each row of `logits`, float32 [T, vocab], to `tokens` int32 [T], and the largest logit to
    `peaks` float32 [T]: +inf if a logit is NaN. With temperature 0 it is the lowest of the most likely tokens, else the
    first at which the cumulative probability exceeds `uniforms` float32 [T]."""
    rows, vocab = logits.shape
    shape = {"VOCAB": vocab, "CHUNKS": space.num_chunks, "CHAINED": chained, "launch_pdl": chained}
    one: Any = _summarise[(rows, space.num_chunks)]
    one(logits, temperatures, space.peaks, space.places, space.sums, num_warps=4, **shape)
    two: Any = _draw[(rows,)]
    block = triton.next_power_of_2(space.num_chunks + 1)
    two(
        logits, temperatures, uniforms, space.peaks, space.places, space.sums, tokens, peaks,
        BLOCK=block, num_warps=4, **shape,
    )  # fmt: skip
