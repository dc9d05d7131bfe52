"""Attention over blocks of KV memory, rotary positions, and writing keys and values.

A context is attended in tiles of TILE tokens. Each tile has its own softmax; the tiles are merged from the first to the
last. That order depends neither on the batch, nor on how many tiles a kernel computes side by side.
"""

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu.launch import EXACT, prefetch, start, wait

TILE = tl.constexpr(64)
SIDE = tl.constexpr(4)  # tiles that a program of the decode kernel computes side by side, one in each warp


@triton.jit
def _heads(
    qkv, token, kv_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Return both halves, [ROWS, D / 2], of the heads that share a KV head: the queries, then the key."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    HALF: tl.constexpr = D // 2
    each, columns = tl.arange(0, ROWS), tl.arange(0, HALF)
    head = tl.where(each < GROUP, kv_head * GROUP + each, HEADS + kv_head)
    kept = (each <= GROUP)[:, None]
    at = qkv + token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * D) + head[:, None] * D + columns[None, :]
    return tl.load(at, mask=kept, other=0.0), tl.load(at + HALF, mask=kept, other=0.0)


@triton.jit
def _turn(
    one, two, q_norm, k_norm, eps, cos, sin,
    GROUP: tl.constexpr, D: tl.constexpr, NORMED: tl.constexpr, MODEL: tl.constexpr,
):  # fmt: skip
    """Norm and rotate what `_heads` returns. Every kernel uses its shape, so that sums have the same order."""
    ROWS: tl.constexpr = one.shape[0]
    HALF: tl.constexpr = D // 2
    one, two = one.to(tl.float32), two.to(tl.float32)
    if NORMED:
        each, columns = tl.arange(0, ROWS), tl.arange(0, HALF)
        is_key = (each == GROUP)[:, None]
        gain = tl.where(is_key, tl.load(k_norm + columns)[None, :], tl.load(q_norm + columns)[None, :])
        k_gain_two, q_gain_two = tl.load(k_norm + HALF + columns), tl.load(q_norm + HALF + columns)
        gain_two = tl.where(is_key, k_gain_two[None, :], q_gain_two[None, :])
        total = tl.sum(one * one, axis=1) + tl.sum(two * two, axis=1)
        scale = (1.0 / tl.sqrt_rn(total / D + eps))[:, None]
        one = (one * scale * gain.to(tl.float32)).to(MODEL).to(tl.float32)
        two = (two * scale * gain_two.to(tl.float32)).to(MODEL).to(tl.float32)
    return tl.fma(one, cos, -(two * sin)).to(MODEL), tl.fma(two, cos, one * sin).to(MODEL)


@triton.jit
def _write(
    qkv, q_norm, k_norm, turns, positions, slots, q_out, k_cache, v_cache, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, NORMED: tl.constexpr, ROWS: tl.constexpr,
    SHARE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One token, and SHARE of the KV heads: all are loaded before the first is stored."""
    start(CHAINED)
    token, first = tl.program_id(0), tl.program_id(1) * SHARE
    GROUP: tl.constexpr = HEADS // KV_HEADS
    HALF: tl.constexpr = D // 2
    MODEL: tl.constexpr = k_cache.dtype.element_ty
    each, columns, wide = tl.arange(0, ROWS), tl.arange(0, HALF), tl.arange(0, D)
    slot = tl.load(slots + token).to(tl.int64)
    angle = turns + tl.load(positions + token).to(tl.int64) * D + columns
    cos, sin = tl.load(angle)[None, :], tl.load(angle + HALF)[None, :]
    wait(CHAINED)
    loaded = ()
    for index in tl.static_range(SHARE):
        one, two = _heads(qkv, token, first + index, HEADS, KV_HEADS, D, ROWS)
        own = qkv + token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * D) + (HEADS + KV_HEADS + first + index) * D
        loaded = loaded + (one, two, tl.load(own + wide))
    for index in tl.static_range(SHARE):
        one, two = _turn(
            loaded[3 * index], loaded[3 * index + 1], q_norm, k_norm, eps, cos, sin, GROUP, D, NORMED, MODEL
        )
        if q_out is not None:
            head = (first + index) * GROUP + each
            at = q_out + (token.to(tl.int64) * HEADS + head)[:, None] * D + columns[None, :]
            tl.store(at, one, mask=(each < GROUP)[:, None])
            tl.store(at + HALF, two, mask=(each < GROUP)[:, None])
        at = (slot * KV_HEADS + first + index) * D
        here = k_cache + at + (each[:, None] * 0 + columns[None, :])
        tl.store(here, one, mask=(each == GROUP)[:, None])
        tl.store(here + HALF, two, mask=(each == GROUP)[:, None])
        tl.store(v_cache + at + wide, loaded[3 * index + 2])


def norm_rope_write(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    turns: Tensor,
    positions: Tensor,
    slots: Tensor,
    q_out: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    chained: bool = False,
) -> None:
    """Norm and rotate q and k of `qkv` [T, (heads + 2 kv heads) * D]. Write q to `q_out` [T, heads, D] if it is given,
    and k and v to `slots` int32 [T]. `turns`: cos and sin of every position, float32 [context, 2, D / 2]."""
    kv_heads, head_dim = k_cache.shape[2:]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    q_norm, k_norm = norms or (None, None)
    share = gcd(kv_heads, _MOST_SHARED)
    launch: Any = _write[(len(qkv), kv_heads // share)]
    launch(
        qkv, q_norm, k_norm, turns, positions, slots, q_out, k_cache, v_cache, eps,
        HEADS=heads, KV_HEADS=kv_heads, D=head_dim, NORMED=norms is not None, ROWS=_rows(heads // kv_heads),
        SHARE=share, CHAINED=chained, num_warps=4, launch_pdl=chained, **EXACT,
    )  # fmt: skip


_MOST_SHARED = 4  # KV heads of a program of `_write`


def _rows(group: int) -> int:
    """Return the rows for the heads that share a KV head, and for its key; a tensor core takes 8."""
    return max(8, int(triton.next_power_of_2(group + 1)))


@triton.jit
def merge(peak, total, mixed, other_peak, other_total, other_mixed):
    """Add a tile to those before."""
    higher = tl.maximum(peak, other_peak)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    mine, its = tl.exp2(peak - base), tl.exp2(other_peak - base)
    return higher, tl.fma(total, mine, other_total * its), tl.fma(mixed, mine, other_mixed * its)


@triton.jit
def _four(values):
    """Return the four [A, B] of [4, A, B]."""
    A: tl.constexpr = values.shape[1]
    B: tl.constexpr = values.shape[2]
    even, odd = tl.split(tl.reshape(tl.permute(values, (1, 2, 0)), (A, B, 2, 2)))
    zero, two = tl.split(even)
    one, three = tl.split(odd)
    return zero, one, two, three


@triton.jit
def _merge_side(peak, total, mixed, peaks, totals, mixes):
    """Add four tiles, [4, 1, ROWS] and [4, D, ROWS], to those before."""
    p0, p1, p2, p3 = _four(peaks)
    t0, t1, t2, t3 = _four(totals)
    m0, m1, m2, m3 = _four(mixes)
    peak, total, mixed = merge(peak, total, mixed, p0, t0, m0)
    peak, total, mixed = merge(peak, total, mixed, p1, t1, m1)
    peak, total, mixed = merge(peak, total, mixed, p2, t2, m2)
    return merge(peak, total, mixed, p3, t3, m3)


@triton.jit
def rows_of(table, tokens, last, kv_head, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Return where in a cache the keys or values of `tokens` start; for those after `last`, where those of `last` do:
    they weigh nothing, but must be finite if the row's own are."""
    tokens = tl.minimum(tokens, last)
    blocks = tl.load(table + tokens // BLOCK_SIZE)
    return ((blocks.to(tl.int64) * BLOCK_SIZE + tokens % BLOCK_SIZE) * KV_HEADS + kv_head) * D


@triton.jit
def _decode(
    qkv, q_norm, k_norm, turns, positions, tables, widths, owners, k_cache, v_cache, out, partial, arrived, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, NORMED: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, MOST_TILES: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One token of one row, and the heads that share a KV head. A step is SIDE tiles, one in each warp. Of several
    programs for the same heads, the last to arrive merges what all have stored. Keys and values of earlier tokens are
    prefetched before `wait`, into a cache that also sees what the kernel before still writes."""
    start(CHAINED)
    row, kv_head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    HALF: tl.constexpr = D // 2
    MODEL: tl.constexpr = out.dtype.element_ty
    STEP: tl.constexpr = SIDE * TILE
    position = tl.load(positions + row)
    owner = row
    if owners is not None:
        owner = tl.load(owners + row)
    table = tables + owner.to(tl.int64) * tl.load(widths)
    lowest = 0
    if WINDOW > 0:
        lowest = tl.maximum(position + 1 - WINDOW, 0) // STEP
    num_steps = position // STEP + 1 - lowest
    if lane < num_steps:
        each, halves, wide = tl.arange(0, ROWS), tl.arange(0, HALF), tl.arange(0, D)
        if CHAINED:
            near = (lowest + lane) * STEP + tl.arange(0, STEP)
            known = rows_of(table, near, position, kv_head, KV_HEADS, D, BLOCK_SIZE)
            prefetch(k_cache + known, D)
            prefetch(v_cache + known, D)
        angle = turns + position.to(tl.int64) * D + halves
        cos, sin = tl.load(angle)[None, :], tl.load(angle + HALF)[None, :]
        block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
        wait(CHAINED)
        one, two = _heads(qkv, row, kv_head, HEADS, KV_HEADS, D, ROWS)
        one, two = _turn(one, two, q_norm, k_norm, eps, cos, sin, GROUP, D, NORMED, MODEL)
        if owners is None:
            if lane == (num_steps - 1) % LANES:  # this program attends to the new token
                slot = ((block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + kv_head) * D
                here = k_cache + slot + (each[:, None] * 0 + halves[None, :])
                tl.store(here, one, mask=(each == GROUP)[:, None])
                tl.store(here + HALF, two, mask=(each == GROUP)[:, None])
                own = row.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * D) + (HEADS + KV_HEADS + kv_head) * D
                tl.store(v_cache + slot + wide, tl.load(qkv + own + wide))
                tl.debug_barrier()
        q_one = tl.broadcast_to(tl.trans(one)[None, :, :], (SIDE, HALF, ROWS))
        q_two = tl.broadcast_to(tl.trans(two)[None, :, :], (SIDE, HALF, ROWS))
        peak = tl.full((1, ROWS), float("-inf"), tl.float32)
        total = tl.zeros((1, ROWS), tl.float32)
        mixed = tl.zeros((D, ROWS), tl.float32)
        mine = partial + (row * KV_HEADS + kv_head).to(tl.int64) * (MOST_TILES * GROUP * (D + 2))
        side = tl.arange(0, SIDE)[:, None, None]
        kept = (each < GROUP)[None, None, :]
        places = (side * GROUP + each[None, None, :]) * D + wide[None, :, None]
        ends = SIDE * GROUP * D + side * GROUP + each[None, None, :]
        alone = (LANES == 1) | (num_steps == 1)
        within = (tl.arange(0, SIDE) * TILE)[:, None] + tl.arange(0, TILE)[None, :]
        for step in range(lane, num_steps, LANES):
            tokens = (lowest + step) * STEP + within
            at = rows_of(table, tokens, position, kv_head, KV_HEADS, D, BLOCK_SIZE)[:, :, None]
            k_one = tl.load(k_cache + at + halves[None, None, :])
            k_two = tl.load(k_cache + at + HALF + halves[None, None, :])
            v = tl.load(v_cache + at + wide[None, None, :])
            scores = tl.dot(k_one, q_one, input_precision="ieee")
            scores = tl.dot(k_two, q_two, scores, input_precision="ieee")
            visible = tokens <= position
            if WINDOW > 0:
                visible = visible & (position - tokens < WINDOW)
            scores = tl.where(visible[:, :, None], scores, float("-inf"))
            peaks = tl.max(scores, axis=1, keep_dims=True) * scale
            base = tl.where(peaks == float("-inf"), 0.0, peaks)
            weights = tl.exp2(tl.fma(scores, scale, -base)).to(MODEL)
            mixes = tl.dot(tl.trans(v, 0, 2, 1), weights, input_precision="ieee")
            ones = tl.full((SIDE, 16, TILE), 1.0, MODEL)
            totals = tl.max(tl.dot(ones, weights, input_precision="ieee"), axis=1, keep_dims=True)
            if alone:
                peak, total, mixed = _merge_side(peak, total, mixed, peaks, totals, mixes)
            else:
                stored = mine + step * (SIDE * GROUP * (D + 2))
                tl.store(stored + places, mixes, mask=kept)
                tl.store(stored + ends, peaks, mask=kept)
                tl.store(stored + ends + SIDE * GROUP, totals, mask=kept)
        is_last = alone
        if not alone:
            tl.debug_barrier()
            count = arrived + row * KV_HEADS + kv_head
            is_last = tl.atomic_add(count, 1, sem="acq_rel") == tl.minimum(LANES, num_steps) - 1
            if is_last:
                for step in range(num_steps):
                    stored = mine + step * (SIDE * GROUP * (D + 2))
                    mixes = tl.load(stored + places, mask=kept, other=0.0, cache_modifier=".cg")
                    peaks = tl.load(stored + ends, mask=kept, other=0.0, cache_modifier=".cg")
                    totals = tl.load(stored + ends + SIDE * GROUP, mask=kept, other=1.0, cache_modifier=".cg")
                    peak, total, mixed = _merge_side(peak, total, mixed, peaks, totals, mixes)
                tl.store(count, 0)
        if is_last:
            head = kv_head * GROUP + each
            there = out + (row.to(tl.int64) * HEADS + head)[None, :] * D + wide[:, None]
            tl.store(there, (mixed / total).to(MODEL), mask=(each < GROUP)[None, :])


class AttentionSpace:
    """Results of tiles that programs compute side by side."""

    def __init__(
        self, most_rows: int, most_context: int, heads: int, kv_heads: int, head_dim: int, device: torch.device
    ) -> None:
        self.most_tiles = triton.cdiv(most_context, SIDE.value * TILE.value) * SIDE.value
        rows = max(rows for rows in range(1, most_rows + 1) if rows == 1 or num_lanes(rows, kv_heads) > 1)
        size = rows * heads * self.most_tiles * (head_dim + 2)
        self.partial = torch.empty(size, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(most_rows * kv_heads, dtype=torch.int32, device=device)  # a call leaves zeros


def num_lanes(num_rows: int, kv_heads: int) -> int:
    """Return how many programs share a context. It affects only speed."""
    return max(1, min(16, 256 // (num_rows * kv_heads)))


LOG2E = 1.4426950408889634


def decode(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    turns: Tensor,
    positions: Tensor,
    tables: Tensor,
    widths: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    space: AttentionSpace,
    *,
    num_rows: int,
    owners: Tensor | None = None,
    window: int | None = None,
    chained: bool = False,
) -> Tensor:
    """Do `norm_rope_write` and attention for one token of each row. `tables` int32 holds the rows' block tables, one
    after the other, each of `widths[0]` blocks. With `owners` int32 [T], token t uses the table `owners[t]`, and
    `norm_rope_write` has written the keys and values of all tokens: several may belong to one row."""
    _, block_size, kv_heads, head_dim = k_cache.shape
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    q_norm, k_norm = norms or (None, None)
    lanes = min(num_lanes(num_rows, kv_heads), space.most_tiles // SIDE.value)
    launch: Any = _decode[(num_rows, kv_heads, lanes)]
    launch(
        qkv, q_norm, k_norm, turns, positions, tables, widths, owners, k_cache, v_cache, out, space.partial,
        space.arrived, eps, head_dim**-0.5 * LOG2E,
        HEADS=heads, KV_HEADS=kv_heads, D=head_dim, NORMED=norms is not None, WINDOW=window or 0,
        BLOCK_SIZE=block_size, ROWS=_rows(heads // kv_heads), LANES=lanes,
        MOST_TILES=space.most_tiles, CHAINED=chained, num_warps=SIDE.value, num_stages=1, launch_pdl=chained, **EXACT,
    )  # fmt: skip
    return out
