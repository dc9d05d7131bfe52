"""RMS norm, and the embedding.

Every kernel sums a row's squares in the same order, so that a norm gives the same bits wherever it is computed.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu.launch import EXACT, start, wait

PARTS = tl.constexpr(4)  # contiguous parts of a row: a warp sums one of them
CHUNK = tl.constexpr(256)  # columns of a part that are summed at a time


@triton.jit
def sum_of_parts(values):
    """Add up [4, A, B] over the first axis, from left to right."""
    A: tl.constexpr = values.shape[1]
    B: tl.constexpr = values.shape[2]
    pairs = tl.reshape(tl.permute(values, (1, 2, 0)), (A, B, 2, 2))
    even, odd = tl.split(pairs)
    zero, two = tl.split(even)
    one, three = tl.split(odd)
    return ((zero + one) + two) + three


@triton.jit
def sum_parts(values):
    """Add up [4, A] over the first axis, from left to right."""
    A: tl.constexpr = values.shape[1]
    even, odd = tl.split(tl.reshape(tl.permute(values, (1, 0)), (A, 2, 2)))
    zero, two = tl.split(even)
    one, three = tl.split(odd)
    return ((zero + one) + two) + three


@triton.jit
def inverse_root(total, eps, SIZE: tl.constexpr):
    return 1.0 / tl.sqrt_rn(total / SIZE + eps)


@triton.jit
def _rms_norm(x, weight, out, eps, SIZE: tl.constexpr, CHAINED: tl.constexpr):
    start(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    part: tl.constexpr = (SIZE + PARTS - 1) // PARTS
    first = (tl.arange(0, PARTS) * part)[:, None, None]
    columns = tl.arange(0, CHUNK)[None, None, :]
    wait(CHAINED)
    squares = tl.zeros((PARTS, 1), tl.float32)
    for done in tl.static_range(0, part, CHUNK):
        at = first + done + columns
        inside = (done + columns < part) & (at < SIZE)
        values = tl.load(x + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
        squares += tl.sum(values * values, axis=2)
    scale = inverse_root(sum_parts(squares), eps, SIZE)[None, :, None]
    for done in tl.static_range(0, part, CHUNK):
        at = first + done + columns
        inside = (done + columns < part) & (at < SIZE)
        values = tl.load(x + row * SIZE + at, mask=inside, other=0.0).to(tl.float32) * scale
        values *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * SIZE + at, values.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, *, chained: bool = False) -> Tensor:
    """The same as `reference.layers.rms_norm`, for x [T, size]."""
    launch: Any = _rms_norm[(len(x),)]
    launch(x, weight, out, eps, SIZE=x.shape[1], CHAINED=chained, num_warps=4, launch_pdl=chained, **EXACT)
    return out


@triton.jit
def token_of(row, tokens, sources, sampled, taken, FED: tl.constexpr):
    """Return the row's token. If FED, it is the one at its source in `sampled`, if it has a source, and stored."""
    token = tl.load(tokens + row)
    if FED:
        source = tl.load(sources + row)
        if source >= 0:
            token = tl.load(sampled + source)
        tl.store(taken + row, token)
    return token


@triton.jit
def _embed(tokens, sources, sampled, taken, table, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, FED: tl.constexpr):
    row = tl.program_id(0)
    token = token_of(row, tokens, sources, sampled, taken, FED)
    columns = tl.arange(0, BLOCK)
    values = tl.load(table + token.to(tl.int64) * SIZE + columns, mask=columns < SIZE)
    tl.store(out + row.to(tl.int64) * SIZE + columns, values, mask=columns < SIZE)


def embed(
    tokens: Tensor,
    table: Tensor,
    out: Tensor,
    sources: Tensor | None = None,
    sampled: Tensor | None = None,
    taken: Tensor | None = None,
) -> Tensor:
    """Look up rows of `table` for `tokens` int32 [T]. Where `sources` int32 [T] is not negative, take instead the token
    at that place of `sampled`, and write the tokens to `taken`."""
    size = table.shape[1]
    launch: Any = _embed[(len(out),)]
    block, is_fed = triton.next_power_of_2(size), sampled is not None
    launch(tokens, sources, sampled, taken, table, out, SIZE=size, BLOCK=block, FED=is_fed)
    return out
