"""Attention of prompts on Hopper GPUs: the tiles of `prompt_attention.py`, with the same sums in the same order.

A program stays on its multiprocessor and takes one piece of work after the other: BLOCK_ROWS rows of queries that share
a KV head. One warp lets the copy engine fetch keys, another values, box after box of a block's tokens, some tiles
ahead. Two groups of four warps have half of the rows each. A group starts the scores of a tile and mixes the values of
the tile before at once; while it weighs and merges them, the tensor cores serve the other group.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from specialist.ops.gpu.attention import LOG2E
from specialist.ops.gpu.launch import EXACT

BLOCK_ROWS = 128
TILE = gl.constexpr(64)  # tokens, as in `attention.py`
SIDE = gl.constexpr(64)  # rows of a group of warps: the fewest that tensor cores multiply at a time
PANEL = gl.constexpr(64)  # columns that the copy engine writes in a piece
STAGES = gl.constexpr(4)  # tiles of keys, and of values, in shared memory


@gluon.jit
def _place(turn):
    """Return the place of a program's work in the list. Every second turn goes backwards: the list is sorted, so that
    all programs get about as much."""
    mine, programs = gl.program_id(0), gl.num_programs(0)
    return turn * programs + gl.where(turn % 2 == 0, mine, programs - 1 - mine)


@gluon.jit
def _rows(lists, place, num_works, KV_HEADS: gl.constexpr):
    """Return the row of the work at `place`, its first token, where its row ends, and the row's context. After the
    last work, no token comes before the end."""
    block_rows, block_firsts, query_start, context_lens = lists
    block = gl.minimum(place, num_works - 1) // KV_HEADS
    row = gl.load(block_rows + block)
    ends = gl.where(place < num_works, gl.load(query_start + row + 1), 0)
    return row, gl.load(block_firsts + block), ends, gl.load(context_lens + row)


@gluon.jit
def _keys(first, ends, context, QUERIES: gl.constexpr, WINDOW: gl.constexpr):
    """Return where the keys of a work begin, a multiple of TILE, where they stop, and how many tiles they are."""
    start = context - ends + first
    stop = gl.minimum(start + QUERIES, context)
    lowest = 0
    if WINDOW > 0:
        lowest = gl.maximum(start + 1 - WINDOW, 0) // TILE * TILE
    return lowest, stop, gl.cdiv(stop - lowest, TILE)


@gluon.jit
def _blocks(table, begin, last, BOX: gl.constexpr, BLOCK_SIZE: gl.constexpr):
    """Return the blocks of the boxes of a tile; after `last`, its block. There are at most four boxes."""
    zero = gl.load(table + gl.minimum(begin, last) // BLOCK_SIZE)
    one, two, three = zero, zero, zero
    if BOX < 64:
        one = gl.load(table + gl.minimum(begin + BOX, last) // BLOCK_SIZE)
    if BOX < 32:
        two = gl.load(table + gl.minimum(begin + 2 * BOX, last) // BLOCK_SIZE)
        three = gl.load(table + gl.minimum(begin + 3 * BOX, last) // BLOCK_SIZE)
    return zero, one, two, three


@gluon.jit
def _fetch(
    cache, boxes, full, empty, lists, tables, widths, num_works,
    KV_HEADS: gl.constexpr, D: gl.constexpr, WINDOW: gl.constexpr, QUERIES: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    BOX: gl.constexpr,
):  # fmt: skip
    """Fetch the keys, or the values, of all work of this program."""
    BOXES: gl.constexpr = TILE // BOX
    PANELS: gl.constexpr = D // PANEL
    width = gl.load(widths)
    row, first, ends, context = _rows(lists, _place(0), num_works, KV_HEADS)
    turn, done = 0, 0
    while first < ends:
        lowest, stop, count = _keys(first, ends, context, QUERIES, WINDOW)
        column = _place(turn) % KV_HEADS * D
        table = tables + row.to(gl.int64) * width
        zero, one, two, three = _blocks(table, lowest, stop - 1, BOX, BLOCK_SIZE)
        for tile in range(0, count):
            begin = lowest + tile * TILE
            blocks = (zero, one, two, three)
            zero, one, two, three = _blocks(table, begin + TILE, stop - 1, BOX, BLOCK_SIZE)
            at = done + tile
            stage = at % STAGES
            mbarrier.wait(empty.index(stage), (at // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), TILE * D * 2)
            for box in gl.static_range(BOXES):
                token = begin + box * BOX
                slot = blocks[box] * BLOCK_SIZE + token % BLOCK_SIZE
                slot = gl.where(token < stop, slot, -BOX)  # outside of the cache, the copy engine finds zeros
                for panel in gl.static_range(PANELS):
                    to = boxes.index((stage * PANELS + panel) * BOXES + box)
                    tma.async_copy_global_to_shared(cache, [slot, column + panel * PANEL], full.index(stage), to)
        done += count
        turn += 1
        row, first, ends, context = _rows(lists, _place(turn), num_works, KV_HEADS)


@gluon.jit
def _load_queries(
    q, queries, kv_head, first, ends,
    HEADS: gl.constexpr, GROUP: gl.constexpr, D: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """Start to copy a side's rows to shared memory."""
    each, columns = gl.arange(0, SIDE, gl.SliceLayout(1, WIDE)), gl.arange(0, D, gl.SliceLayout(0, WIDE))
    token = first + each // GROUP
    place = (token.to(gl.int64) * HEADS + kv_head * GROUP + each % GROUP) * D
    kept = (token < ends)[:, None]
    async_copy.async_copy_global_to_shared(queries, q + (place[:, None] + columns[None, :]), mask=kept)
    async_copy.commit_group()


@gluon.jit
def _score(queries, keys, S: gl.constexpr):
    zeros = gl.zeros([SIDE, TILE], gl.float32, S)
    return warpgroup_mma(queries, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _mix(weights, values, MIXED: gl.constexpr):
    D: gl.constexpr = values.shape[1]
    zeros = gl.zeros([SIDE, D], gl.float32, MIXED)
    weights = gl.convert_layout(weights, gl.DotOperandLayout(0, MIXED, 2))
    return warpgroup_mma(weights, values, zeros, use_acc=False, is_async=True)


@gluon.jit
def _sum(weights, ones, SUM: gl.constexpr):
    """Start to sum each row's weights, 8 times beside each other: tensor cores multiply by no fewer columns."""
    zeros = gl.zeros([SIDE, 8], gl.float32, SUM)
    weights = gl.convert_layout(weights, gl.DotOperandLayout(0, SUM, 2))
    return warpgroup_mma(weights, ones.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _hide(scores, begin, start, GROUP: gl.constexpr, WINDOW: gl.constexpr, S: gl.constexpr):
    """Set the scores of tokens that a query does not see to -inf. `start`: the position of the first query."""
    query = (start + gl.arange(0, SIDE, gl.SliceLayout(1, S)) // GROUP)[:, None]
    tokens = (begin + gl.arange(0, TILE, gl.SliceLayout(0, S)))[None, :]
    visible = tokens <= query
    if WINDOW > 0:
        visible = visible & (query - tokens < WINDOW)
    return gl.where(visible, scores, float("-inf"))


@gluon.jit
def _weigh(scores, scale):
    """Return the peak of each row, and the weights."""
    peak = gl.max(scores, axis=1) * scale
    base = gl.expand_dims(-gl.where(peak == float("-inf"), 0.0, peak), 1).broadcast_to(scores.shape)
    return peak, gl.exp2(gl.fma(scores, gl.full_like(scores, scale), base))


@gluon.jit
def _merge(peak, total, mixed, its_peak, its_total, its_mixed, SUM: gl.constexpr, MIXED: gl.constexpr):
    """The same as `attention.merge`."""
    higher = gl.maximum(peak, its_peak)
    base = gl.where(higher == float("-inf"), 0.0, higher)
    mine, its = gl.exp2(peak - base), gl.exp2(its_peak - base)
    total = gl.fma(total, _beside(mine, total, SUM), its_total * _beside(its, total, SUM))
    return higher, total, gl.fma(mixed, _beside(mine, mixed, MIXED), its_mixed * _beside(its, mixed, MIXED))


@gluon.jit
def _beside(values, matrix, LAYOUT: gl.constexpr):
    """Return one value for each row, as wide as the matrix."""
    return gl.expand_dims(gl.convert_layout(values, gl.SliceLayout(1, LAYOUT)), 1).broadcast_to(matrix.shape)


@gluon.jit
def _step(
    peak, total, mixed, its_peak, weights, at, begin, start, scale, queries, keys, values, ones, bars,
    HIDES: gl.constexpr, GROUP: gl.constexpr, WINDOW: gl.constexpr,
    S: gl.constexpr, SUM: gl.constexpr, MIXED: gl.constexpr,
):  # fmt: skip
    """Compute the weights of tile `at`; mix the tile before, whose peak and weights are given, and merge it."""
    k_full, k_empty, v_full, v_empty = bars
    stage, before = at % STAGES, (at - 1) % STAGES
    mbarrier.wait(k_full.index(stage), at // STAGES & 1)
    scores = _score(queries, keys.index(stage), S)
    rounded = weights.to(values.dtype)
    mbarrier.wait(v_full.index(before), (at - 1) // STAGES & 1)
    its_total = _sum(rounded, ones, SUM)
    its_mixed = _mix(rounded, values.index(before), MIXED)
    scores = warpgroup_mma_wait(2, deps=(scores,))
    mbarrier.arrive(k_empty.index(stage), count=1)
    if HIDES:
        scores = _hide(scores, begin, start, GROUP, WINDOW, S)
    next_peak, next_weights = _weigh(scores, scale)
    its_total, its_mixed = warpgroup_mma_wait(0, deps=(its_total, its_mixed))
    mbarrier.arrive(v_empty.index(before), count=1)
    peak, total, mixed = _merge(peak, total, mixed, its_peak, its_total, its_mixed, SUM, MIXED)
    return peak, total, mixed, next_peak, next_weights


@gluon.jit
def _compute(
    q, out, queries, k_boxes, v_boxes, ones, bars, lists, scale, num_works,
    HALF: gl.constexpr, HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, WINDOW: gl.constexpr,
    QUERIES: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Half of the rows of all work of this program. The queries of the next work are loaded while one ends."""
    GROUP: gl.constexpr = HEADS // KV_HEADS
    MODEL: gl.constexpr = q.dtype.element_ty
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    MIXED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    BOXED: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    keys = k_boxes._reinterpret(MODEL, [STAGES, TILE, D], queries.layout)
    values = v_boxes._reinterpret(MODEL, [STAGES, TILE, D], queries.layout)
    k_full, k_empty, v_full, v_empty = bars
    OWN: gl.constexpr = HALF * QUERIES // 2
    mine = queries.index(HALF)
    _row, first, ends, context = _rows(lists, _place(0), num_works, KV_HEADS)
    _load_queries(q, mine, _place(0) % KV_HEADS, first + OWN, ends, HEADS, GROUP, D, WIDE)
    turn, done = 0, 0
    while first < ends:
        kv_head = _place(turn) % KV_HEADS
        turn += 1
        next_head = _place(turn) % KV_HEADS
        _row, next_first, next_ends, next_context = _rows(lists, _place(turn), num_works, KV_HEADS)
        lowest, stop, count = _keys(first, ends, context, QUERIES, WINDOW)
        start = context - ends + first + OWN
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        seen = 0  # so many tiles are seen by every query
        if WINDOW == 0:
            seen = gl.minimum((start + 1) // TILE, count)
        peak = gl.full([SIDE], float("-inf"), gl.float32, gl.SliceLayout(1, S))
        total = gl.zeros([SIDE, 8], gl.float32, SUM)
        mixed = gl.zeros([SIDE, D], gl.float32, MIXED)
        mbarrier.wait(k_full.index(done % STAGES), done // STAGES & 1)
        scores = warpgroup_mma_wait(0, deps=(_score(mine, keys.index(done % STAGES), S),))
        mbarrier.arrive(k_empty.index(done % STAGES), count=1)
        its_peak, weights = _weigh(_hide(scores, lowest, start, GROUP, WINDOW, S), scale)
        for tile in range(1, seen):
            peak, total, mixed, its_peak, weights = _step(
                peak, total, mixed, its_peak, weights, done + tile, lowest + tile * TILE, start, scale,
                mine, keys, values, ones, bars, False, GROUP, WINDOW, S, SUM, MIXED,
            )  # fmt: skip
        for tile in range(gl.maximum(seen, 1), count):
            peak, total, mixed, its_peak, weights = _step(
                peak, total, mixed, its_peak, weights, done + tile, lowest + tile * TILE, start, scale,
                mine, keys, values, ones, bars, True, GROUP, WINDOW, S, SUM, MIXED,
            )  # fmt: skip
        done += count
        stage = (done - 1) % STAGES
        mbarrier.wait(v_full.index(stage), (done - 1) // STAGES & 1)
        if stop % BOX != 0:  # values after the last token weigh nothing, but might not be finite
            for panel in gl.static_range(D // PANEL):
                box = v_boxes.index((stage * (D // PANEL) + panel) * (TILE // BOX) + stop % TILE // BOX)
                kept = (gl.arange(0, BOX, gl.SliceLayout(1, BOXED)) < stop % BOX)[:, None]
                box.store(gl.where(kept, box.load(BOXED), 0.0))
            fence_async_shared()
            gl.thread_barrier()
        rounded = weights.to(MODEL)
        its_total = _sum(rounded, ones, SUM)
        its_mixed = _mix(rounded, values.index(stage), MIXED)
        gl.thread_barrier()  # all warps have used their queries
        _load_queries(q, mine, next_head, next_first + OWN, next_ends, HEADS, GROUP, D, WIDE)
        its_total, its_mixed = warpgroup_mma_wait(0, deps=(its_total, its_mixed))
        mbarrier.arrive(v_empty.index(stage), count=1)
        peak, total, mixed = _merge(peak, total, mixed, its_peak, its_total, its_mixed, SUM, MIXED)
        total = gl.max(total, axis=1)  # all are equal
        result = gl.convert_layout((mixed / _beside(total, mixed, MIXED)).to(MODEL), WIDE)
        each, columns = gl.arange(0, SIDE, gl.SliceLayout(1, WIDE)), gl.arange(0, D, gl.SliceLayout(0, WIDE))
        token = first + OWN + each // GROUP
        place = (token.to(gl.int64) * HEADS + kv_head * GROUP + each % GROUP) * D
        gl.store(out + (place[:, None] + columns[None, :]), result, mask=(token < ends)[:, None])
        first, ends, context = next_first, next_ends, next_context
    async_copy.wait_group(0)


@gluon.jit(do_not_specialize=["num_works"])
def _attend(
    q, k_cache, v_cache, block_rows, block_firsts, query_start, context_lens, tables, widths, out, scale, num_works,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, WINDOW: gl.constexpr, QUERIES: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """QUERIES tokens of one row, and the heads that share a KV head, are a piece of work. A program ends at the first
    that has no token: those come last."""
    MODEL: gl.constexpr = q.dtype.element_ty
    BOXES: gl.constexpr = STAGES * (D // PANEL) * (TILE // BOX)
    queries = gl.allocate_shared_memory(MODEL, [2, SIDE, D], k_cache.layout)
    k_boxes = gl.allocate_shared_memory(MODEL, [BOXES, BOX, PANEL], k_cache.layout)
    v_boxes = gl.allocate_shared_memory(MODEL, [BOXES, BOX, PANEL], k_cache.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_empty.index(stage), count=2)
    ones = gl.allocate_shared_memory(MODEL, [8, TILE], k_cache.layout)
    ones.store(gl.full([8, TILE], 1.0, MODEL, gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])))
    fence_async_shared()
    bars = (k_full, k_empty, v_full, v_empty)
    lists = (block_rows, block_firsts, query_start, context_lens)
    gl.warp_specialize(
        [
            (_compute, (q, out, queries, k_boxes, v_boxes, ones, bars, lists, scale, num_works,
                        0, HEADS, KV_HEADS, D, WINDOW, QUERIES, BOX)),
            (_compute, (q, out, queries, k_boxes, v_boxes, ones, bars, lists, scale, num_works,
                        1, HEADS, KV_HEADS, D, WINDOW, QUERIES, BOX)),
            (_fetch, (k_cache, k_boxes, k_full, k_empty, lists, tables, widths, num_works,
                      KV_HEADS, D, WINDOW, QUERIES, BLOCK_SIZE, BOX)),
            (_fetch, (v_cache, v_boxes, v_full, v_empty, lists, tables, widths, num_works,
                      KV_HEADS, D, WINDOW, QUERIES, BLOCK_SIZE, BOX)),
        ],
        worker_num_warps=[4, 1, 1], worker_num_regs=[240, 24, 24],
    )  # fmt: skip


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
    scale: float,
    window: int | None,
) -> Tensor:
    """The same as `prompt_attention.attend`, for 16-bit elements, heads of 64 or 128 elements of which 1, 2, 4 ... 64
    share a KV head, and blocks of 16, 32, 64, 128 or 256 tokens."""
    _, block_size, kv_heads, head_dim = k_cache.shape
    heads = q.shape[1]
    box = min(block_size, TILE.value)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k, v = (
        TensorDescriptor.from_tensor(cache.view(-1, kv_heads * head_dim), [box, PANEL.value], layout)
        for cache in (k_cache, v_cache)
    )
    num_works = len(blocks[0]) * kv_heads
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    launch: Any = _attend[(min(num_works, processors),)]
    launch(
        q, k, v, *blocks, query_start, context_lens, tables, widths, out, scale, num_works,
        HEADS=heads, KV_HEADS=kv_heads, D=head_dim, WINDOW=window or 0, QUERIES=BLOCK_ROWS * kv_heads // heads,
        BLOCK_SIZE=block_size, BOX=box, num_warps=4, maxnreg=_REGISTERS, **EXACT,
    )  # fmt: skip
    return out


_REGISTERS = 168  # of each thread on average: 3 groups of four warps share 65,536


def try_out(device: torch.device) -> None:
    """Compute a small prompt. Raises an error if the kernel cannot be compiled, or computes something else."""
    generator = torch.Generator().manual_seed(0)
    length, context, size = 150, 200, 64
    q, k, v = (
        torch.randn(shape, generator=generator).to(torch.bfloat16)
        for shape in ((length, 2, size), (13, 16, 1, size), (13, 16, 1, size))
    )
    keys, values = (each.float().view(1, -1, size)[:, :context].expand(2, -1, -1) for each in (k, v))
    seen = torch.ones(length, context, dtype=torch.bool).tril(context - length)
    expected = functional.scaled_dot_product_attention(q.float().transpose(0, 1), keys, values, seen).transpose(0, 1)
    lists = [0, 0, 0], [128, 64, 0], [0, length], [context], [*range(13)], [13]
    rows, firsts, *others = (torch.tensor(each, dtype=torch.int32, device=device) for each in lists)
    starts, contexts, tables, widths = others
    out = torch.full((length, 2, size), torch.nan, dtype=q.dtype, device=device)
    caches, scale = (k.to(device), v.to(device)), size**-0.5 * LOG2E
    attend(q.to(device), (rows, firsts), starts, contexts, tables, widths, *caches, out, scale, None)
    if not (out.cpu().float() - expected).norm() < 0.015 * expected.norm():
        raise ArithmeticError("attention of a small prompt differs from the reference")
