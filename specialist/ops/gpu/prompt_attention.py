"""Attention of prompts, and of drafts: rows of any number of tokens over blocks of KV memory.

The tiles are those of `attention.py`, merged in the same order: a token has the same bits as in a decode step. On a
Hopper GPU, `hopper_attention.py` computes what fits there.
"""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from specialist.ops.gpu.attention import LOG2E, TILE, merge
from specialist.ops.gpu.hopper import for_hopper
from specialist.ops.gpu.launch import EXACT


@triton.jit
def _blocks(table, begin, last, BLOCK_SIZE: tl.constexpr):
    """Return the block of each of the TILE tokens from `begin`; after `last`, its block."""
    return tl.load(table + tl.minimum(begin + tl.arange(0, TILE), last) // BLOCK_SIZE)


@triton.jit
def _prefill(
    q, block_rows, block_firsts, query_start, context_lens, tables, widths, k_cache, v_cache, out, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """QUERIES tokens, half of a block, and the heads that share a KV head; nothing if the row ends before. The KV
    blocks of a tile are looked up while the tile before is computed, so that loads of keys and values can run ahead."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    pid = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(block_rows + pid // 2)
    first = tl.load(block_firsts + pid // 2) + pid % 2 * QUERIES
    ends = tl.load(query_start + row + 1)
    if first >= ends:
        return
    context = tl.load(context_lens + row)
    table = tables + row.to(tl.int64) * tl.load(widths)
    each = tl.arange(0, ROWS)
    token = first + each // GROUP
    head = kv_head * GROUP + each % GROUP
    kept = (each < QUERIES * GROUP) & (token < ends)
    query = context - ends + token
    start_of_row = context - ends + first
    stop = tl.minimum(start_of_row + QUERIES, context)
    columns = tl.arange(0, D)
    place = (token.to(tl.int64) * HEADS + head)[:, None] * D + columns[None, :]
    turned = tl.load(q + place, mask=kept[:, None], other=0.0)
    ones = tl.full((TILE, 8), 1.0, turned.dtype)
    peak = tl.full((ROWS, 1), float("-inf"), tl.float32)
    total = tl.zeros((ROWS, 8), tl.float32)
    mixed = tl.zeros((ROWS, D), tl.float32)
    lowest, sees_all = 0, start_of_row // TILE * TILE  # before `sees_all`, every query sees every token
    if WINDOW > 0:
        lowest = tl.maximum(start_of_row + 1 - WINDOW, 0) // TILE * TILE
        sees_all = lowest
    blocks = _blocks(table, lowest, stop - 1, BLOCK_SIZE)
    for begin in tl.range(lowest, stop, TILE, num_stages=3):
        following = _blocks(table, begin + TILE, stop - 1, BLOCK_SIZE)
        tokens = begin + tl.arange(0, TILE)
        slots = blocks.to(tl.int64) * BLOCK_SIZE + tl.minimum(tokens, stop - 1) % BLOCK_SIZE
        at = (slots * KV_HEADS + kv_head) * D
        k = tl.load(k_cache + at[:, None] + columns[None, :])
        v = tl.load(v_cache + at[:, None] + columns[None, :])
        scores = tl.dot(turned, tl.trans(k), input_precision="ieee")
        if begin >= sees_all:
            visible = tokens[None, :] <= query[:, None]
            if WINDOW > 0:
                visible = visible & (query[:, None] - tokens[None, :] < WINDOW)
            scores = tl.where(visible, scores, float("-inf"))
        its_peak = tl.max(scores, axis=1, keep_dims=True) * scale
        base = tl.where(its_peak == float("-inf"), 0.0, its_peak)
        weights = tl.exp2(tl.fma(scores, scale, -base)).to(v.dtype)
        its_total = tl.dot(weights, ones, input_precision="ieee")
        its_mixed = tl.dot(weights, v, input_precision="ieee")
        peak, total, mixed = merge(peak, total, mixed, its_peak, its_total, its_mixed)
        blocks = following
    total = tl.max(total, axis=1, keep_dims=True)  # all are equal
    tl.store(out + place, (mixed / total).to(out.dtype.element_ty), mask=kept[:, None])


def queries(group: int) -> int:
    """Return how many tokens are a block, if so many heads share a KV head."""
    return 2 * max(1, _QUERY_ROWS // group)


def query_blocks(
    query_start: NDArray[np.int32], context_lens: NDArray[np.int32], group: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the row and the first token of each block of queries, those with the longest contexts first."""
    size = queries(group)
    counts = -(-np.diff(query_start) // size)
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    behind = np.cumsum(counts) - counts  # blocks of the rows before
    firsts = query_start[rows] + size * (np.arange(len(rows), dtype=np.int32) - behind[rows].astype(np.int32))
    order = np.argsort(query_start[1:][rows] - firsts - context_lens[rows], kind="stable")
    return rows[order], firsts[order]


_QUERY_ROWS = 64


def attend(
    q: Tensor,
    blocks: tuple[Tensor, Tensor],
    query_start: Tensor,
    context_lens: Tensor,
    tables: Tensor,
    widths: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    window: int | None = None,
) -> Tensor:
    """The same as `reference.layers.attend`, for rows of any number of tokens. `blocks`: see `query_blocks`; those
    without tokens come last. `tables` holds the rows' block tables, one after the other, each of `widths[0]` blocks.
    All integers are int32 on the device."""
    _, block_size, kv_heads, head_dim = k_cache.shape
    heads = q.shape[1]
    scale = head_dim**-0.5 * LOG2E
    hopper = for_hopper("hopper_attention", q.device) if _fits_hopper(q, k_cache) else None
    if hopper is not None:
        found: Tensor = hopper.attend(
            q, blocks, query_start, context_lens, tables, widths, k_cache, v_cache, out, scale, window
        )
        return found
    group = heads // kv_heads
    rows = max(triton.next_power_of_2(group), _QUERY_ROWS)
    launch: Any = _prefill[(2 * len(blocks[0]), kv_heads)]
    launch(
        q, *blocks, query_start, context_lens, tables, widths, k_cache, v_cache, out, scale,
        HEADS=heads, KV_HEADS=kv_heads, D=head_dim, WINDOW=window or 0, BLOCK_SIZE=block_size, ROWS=rows,
        QUERIES=queries(group) // 2, num_warps=4, **EXACT,
    )  # fmt: skip
    return out


def _fits_hopper(q: Tensor, k_cache: Tensor) -> bool:
    """Whether the kernel for Hopper GPUs takes such tensors."""
    _, block_size, kv_heads, head_dim = k_cache.shape
    return (
        q.dtype in (torch.bfloat16, torch.float16)
        and head_dim in (64, 128)
        and _QUERY_ROWS % (q.shape[1] // kv_heads) == 0
        and block_size in (16, 32, 64, 128, 256)
    )
