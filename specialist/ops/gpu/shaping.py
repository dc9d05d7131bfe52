"""Draws on the device from a changed distribution: mask, bias, penalties, then temperature, top-k, top-p and min-p.

The least logit that a filter keeps is found without sorting: by its key, an integer in the order of logits. Each of 8
passes divides the range of keys into 16 parts, and sums up how many tokens, or how much weight, lie above each edge.
All sums are over chunks of fixed size, chunk after chunk, so a row's draw does not depend on other rows.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu.launch import EXACT, start, wait
from specialist.ops.gpu.sampling import CHUNK

PARTS, PASSES = tl.constexpr(16), 8
_SPAN = tl.constexpr(256)
_LEAST = tl.constexpr(-(1 << 31))  # the least key: all tokens are kept
PROMPT = 1 << 15  # set in the count of a token of the prompt
_ALL = tl.constexpr(float(1 << 40))  # more tokens than there are
_PROMPT = tl.constexpr(PROMPT)


class Edits(NamedTuple):
    """What changes the logits of a row, by slot: a row of `slots` names one, or -1."""

    counts: Tensor  # int16 [slots, vocab], how often each token was generated, with the bit PROMPT
    ids: Tensor  # int32 [slots, most], first biased tokens, then banned ones
    values: Tensor  # float32 [slots, most], biases
    lengths: Tensor  # int32 [slots, 2], numbers of biased and of banned tokens


class Shapes(NamedTuple):
    """The rows of a call. All [T]; int32 first, then float32."""

    active: Tensor  # 0: the row is left as it is
    slots: Tensor
    adds: Tensor  # 1: the row's input token is counted first
    free_from: Tensor  # the position of the first draw for which no token is banned
    masks: Tensor  # which mask the row has, from 1 on; 0 for none
    temperatures: Tensor
    uniforms: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    top_k: Tensor  # 0 for none
    top_p: Tensor  # 0 for none
    min_p: Tensor  # its logarithm; -inf for none


class ShapeSpace(NamedTuple):
    peaks: Tensor  # [T, chunks]
    places: Tensor
    sums: Tensor
    ties: Tensor
    tallies: Tensor  # [2, T, chunks, PARTS]
    lows: Tensor  # [2, T]
    aims: Tensor  # [2, T]
    above: Tensor  # [2, T]
    edges: Tensor  # [2, T], the least keys that top-k and top-p keep
    room: Tensor  # [T], how many tokens with the least key are kept


def shape_space(max_rows: int, vocab: int, device: torch.device) -> ShapeSpace:
    chunks = triton.cdiv(vocab, CHUNK.value)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    ints = torch.int32
    return ShapeSpace(
        peaks=empty(max_rows, chunks),
        places=empty(max_rows, chunks, dtype=ints),
        sums=empty(max_rows, chunks),
        ties=empty(max_rows, chunks, dtype=ints),
        tallies=empty(2, max_rows, chunks, PARTS.value),
        lows=empty(2, max_rows, dtype=ints),
        aims=empty(2, max_rows),
        above=empty(2, max_rows),
        edges=empty(2, max_rows, dtype=ints),
        room=empty(max_rows),
    )


@triton.jit
def _edit(
    logits, tokens, positions, active, slots, adds, free_from, counts, ids, values, lengths,
    VOCAB: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """For one row: count the input token, add biases, and ban tokens."""
    start(CHAINED)
    wait(CHAINED)
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    if (tl.load(active + row) != 0) & (slot >= 0):
        each = tl.arange(0, BLOCK)
        at_row = logits + row.to(tl.int64) * VOCAB
        if tl.load(adds + row) != 0:
            at = counts + slot * VOCAB + tl.load(tokens + row)
            tl.store(at, tl.load(at) + 1)
        biased = tl.load(lengths + 2 * slot)
        banned = tl.load(lengths + 2 * slot + 1)
        for begin in range(0, biased, BLOCK):
            inside = begin + each < biased
            where = at_row + tl.load(ids + slot * MOST + begin + each, mask=inside, other=0)
            value = tl.load(values + slot * MOST + begin + each, mask=inside, other=0.0)
            tl.store(where, tl.load(where, mask=inside, other=0.0) + value, mask=inside)
        if tl.load(positions + row) + 1 < tl.load(free_from + row):
            tl.debug_barrier()
            for begin in range(0, banned, BLOCK):
                inside = begin + each < banned
                where = at_row + tl.load(ids + slot * MOST + biased + begin + each, mask=inside, other=0)
                tl.store(where, tl.full((BLOCK,), float("-inf"), tl.float32), mask=inside)


@triton.jit
def _penalise(
    logits, active, slots, own_mask, masks, counts, repetition, presence, frequency, peaks, places,
    VOCAB: tl.constexpr, WORDS: tl.constexpr, CHUNKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """For a chunk: apply mask and penalties, and find the largest logit and its lowest place."""
    start(CHAINED)
    wait(CHAINED)
    row, chunk = tl.program_id(0), tl.program_id(1)
    if tl.load(active + row) != 0:
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = ids < VOCAB
        at = logits + row.to(tl.int64) * VOCAB + ids
        values = tl.load(at, mask=inside, other=float("-inf"))
        slot = tl.load(slots + row).to(tl.int64)
        mask = tl.load(own_mask + row)
        if mask > 0:
            words = tl.load(masks + (mask - 1).to(tl.int64) * WORDS + ids // 32, mask=inside, other=0)
            values = tl.where((words >> (ids % 32)) & 1 != 0, values, float("-inf"))
            tl.store(at, values, mask=inside)
        if slot >= 0:
            count = tl.load(counts + slot * VOCAB + ids, mask=inside, other=0).to(tl.int32)
            penalty = tl.load(repetition + row) + ids * 0.0
            seen = tl.where(values > 0, tl.div_rn(values, penalty), values * penalty)
            values = tl.where((count != 0) & (penalty != 1.0), seen, values)
            generated = count & (_PROMPT - 1)
            less = tl.load(frequency + row) * generated.to(tl.float32) + tl.load(presence + row)
            values = tl.where(generated > 0, values - less, values)
            tl.store(at, values, mask=inside)
        values = tl.where(values == values, values, float("inf"))  # a NaN is found as the largest
        peak = tl.max(values, axis=0)
        tl.store(peaks + row * CHUNKS + chunk, peak)
        tl.store(places + row * CHUNKS + chunk, tl.min(tl.where(values == peak, ids, VOCAB), axis=0))


@triton.jit
def _keys(values):
    bits = (values + 0.0).to(tl.int32, bitcast=True)  # -0 becomes +0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _row_peak(peaks, row, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    chunks = tl.arange(0, BLOCK)
    return tl.max(tl.load(peaks + row * CHUNKS + chunks, mask=chunks < CHUNKS, other=float("-inf")), axis=0)


@triton.jit
def _select(
    tallies, lows, aims, above, limit, row, num_rows,
    PASS: tl.constexpr, COUNTS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the lowest key of the part that pass PASS has found, the measure to reach, and what lies above it."""
    SIDE: tl.constexpr = PASS % 2
    STEP: tl.constexpr = 1 << (28 - 4 * PASS)
    chunks = tl.arange(0, BLOCK)[:, None]
    parts = tl.arange(0, PARTS)
    at = tallies + ((SIDE * num_rows + row).to(tl.int64) * CHUNKS + chunks) * PARTS + parts[None, :]
    whole = tl.sum(tl.load(at, mask=chunks < CHUNKS, other=0.0), axis=0)
    if PASS == 0:
        total = tl.max(whole, axis=0)
        low = row * 0 + _LEAST
        aim = limit * total
        if COUNTS:
            aim = tl.minimum(limit, total)
        higher = total * 0.0
    else:
        low = tl.load(lows + SIDE * num_rows + row)
        aim = tl.load(aims + SIDE * num_rows + row)
        higher = tl.load(above + SIDE * num_rows + row)
    part = tl.maximum(tl.sum((whole >= aim).to(tl.int32), axis=0) - 1, 0)
    if_last = tl.sum(tl.where(parts == part + 1, whole, 0.0), axis=0)
    higher = tl.where(part < PARTS - 1, if_last, higher)
    return low + part * STEP, aim, higher


@triton.jit
def _narrow(
    logits, temperatures, limits, active, peaks, tallies, lows, aims, above, edges, before, num_rows,
    PASS: tl.constexpr, COUNTS: tl.constexpr, AFTER_COUNTS: tl.constexpr, VOCAB: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One pass over a chunk. `before`: the limits of top-k, whose search has just ended if AFTER_COUNTS."""
    start(CHAINED)
    wait(CHAINED)
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, limit = tl.load(temperatures + row), tl.load(limits + row)
    if (tl.load(active + row) != 0) & (temperature > 0.0):
        least = row * 0 + _LEAST
        if AFTER_COUNTS and not COUNTS:
            if PASS == 0:
                top_k = tl.load(before + row)
                if top_k > 0.0:
                    least, _, _ = _select(
                        tallies, lows, aims, above, top_k, row, num_rows, PASS=7, COUNTS=True, CHUNKS=CHUNKS,
                        BLOCK=BLOCK,
                    )  # fmt: skip
                if chunk == 0:
                    tl.store(edges + row, least)
            else:
                least = tl.load(edges + row)
        if limit > 0.0:
            peak = _row_peak(peaks, row, CHUNKS, BLOCK)
            low = row * 0 + _LEAST
            STEP: tl.constexpr = 1 << (28 - 4 * PASS)
            SIDE: tl.constexpr = PASS % 2
            if PASS > 0:
                low, aim, higher = _select(
                    tallies, lows, aims, above, limit, row, num_rows, PASS=PASS - 1, COUNTS=COUNTS, CHUNKS=CHUNKS,
                    BLOCK=BLOCK,
                )  # fmt: skip
                if chunk == 0:
                    tl.store(lows + SIDE * num_rows + row, low)
                    tl.store(aims + SIDE * num_rows + row, aim)
                    tl.store(above + SIDE * num_rows + row, higher)
            parts = tl.arange(0, PARTS)
            edge = low + parts * STEP
            total = tl.zeros((PARTS, _SPAN), tl.float32)
            for begin in range(0, CHUNK, _SPAN):
                ids = chunk * CHUNK + begin + tl.arange(0, _SPAN)
                values = tl.load(logits + row.to(tl.int64) * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
                keys = _keys(values)
                measure = tl.where((ids < VOCAB) & (values > float("-inf")), 1.0, 0.0)
                if not COUNTS:
                    measure = tl.where(keys >= least, measure * tl.exp((values - peak) / temperature), 0.0)
                total += tl.where(keys[None, :] >= edge[:, None], measure[None, :], 0.0)
            at = tallies + ((SIDE * num_rows + row).to(tl.int64) * CHUNKS + chunk) * PARTS
            tl.store(at + parts, tl.sum(total, axis=1))


@triton.jit
def _weigh(
    logits, temperatures, top_k, top_p, min_p, active, peaks, sums, ties, tallies, lows, aims, above, edges, room,
    num_rows, HAS_K: tl.constexpr, VOCAB: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """For a chunk: sum up the weights of the tokens that all filters keep, and count those with the least key."""
    start(CHAINED)
    wait(CHAINED)
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if (tl.load(active + row) != 0) & (temperature > 0.0):
        peak = _row_peak(peaks, row, CHUNKS, BLOCK)
        least = row * 0 + _LEAST
        kept = peak * 0.0 + _ALL
        limit = tl.load(top_p + row)
        if HAS_K:
            least = tl.load(edges + row)
        if limit > 0.0:
            least, aim, higher = _select(
                tallies, lows, aims, above, limit, row, num_rows, PASS=7, COUNTS=False, CHUNKS=CHUNKS, BLOCK=BLOCK
            )
            weight = tl.exp((_value(least) - peak) / temperature)
            kept = tl.maximum(tl.ceil((aim - higher) / weight), 1.0)
        if chunk == 0:
            tl.store(edges + num_rows + row, least)
            tl.store(room + row, kept)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        values = tl.load(logits + row.to(tl.int64) * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
        keys = _keys(values)
        likely = (ids < VOCAB) & (values > float("-inf")) & ((values - peak) / temperature >= tl.load(min_p + row))
        bound = kept + ids * 0.0
        is_tie = likely & (keys == least) & (bound < _ALL)
        taken = likely & ((keys > least) | ((keys == least) & (bound >= _ALL)))
        weights = tl.where(taken, tl.exp((values - peak) / temperature), 0.0)
        tl.store(sums + row * CHUNKS + chunk, tl.sum(weights, axis=0))
        tl.store(ties + row * CHUNKS + chunk, tl.sum(is_tie.to(tl.int32), axis=0))


@triton.jit
def _choose(
    logits, temperatures, uniforms, min_p, active, peaks, places, sums, ties, edges, room, tokens, highest, num_rows,
    VOCAB: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """For a row: draw a token, the first at which the cumulative weight exceeds the uniform number."""
    start(CHAINED)
    wait(CHAINED)
    row = tl.program_id(0)
    if tl.load(active + row) != 0:
        temperature = tl.load(temperatures + row)
        chunks = tl.arange(0, BLOCK)
        here = chunks < CHUNKS
        own = tl.load(peaks + row * CHUNKS + chunks, mask=here, other=float("-inf"))
        peak = tl.max(own, axis=0)
        where = tl.load(places + row * CHUNKS + chunks, mask=here, other=VOCAB)
        token = tl.min(tl.where(own == peak, where, VOCAB), axis=0)
        if (temperature > 0.0) & (peak < float("inf")) & (peak > float("-inf")):
            least, kept = tl.load(edges + num_rows + row), tl.load(room + row)
            equal = tl.load(ties + row * CHUNKS + chunks, mask=here, other=0)
            most = tl.minimum(kept, VOCAB).to(tl.int32)
            share = tl.minimum(tl.maximum(most - (tl.cumsum(equal, axis=0) - equal), 0), equal)
            each_tie = tl.where(kept < _ALL, tl.exp((_value(least) - peak) / temperature), 0.0)
            weights = tl.load(sums + row * CHUNKS + chunks, mask=here, other=0.0) + share.to(tl.float32) * each_tie
            running = tl.cumsum(weights, axis=0)
            wanted = tl.load(uniforms + row) * tl.max(running, axis=0)
            chunk = tl.minimum(tl.min(tl.where((running > wanted) & (weights > 0.0), chunks, BLOCK), axis=0), CHUNKS)
            last_chunk = tl.max(tl.where(weights > 0.0, chunks, 0), axis=0)
            chunk = tl.minimum(chunk, last_chunk)
            before = tl.max(tl.where(chunks < chunk, running, 0.0), axis=0)
            mine = tl.sum(tl.where(chunks == chunk, share, 0), axis=0)
            ids = chunk * CHUNK + tl.arange(0, CHUNK)
            values = tl.load(logits + row.to(tl.int64) * VOCAB + ids, mask=ids < VOCAB, other=float("-inf"))
            keys = _keys(values)
            likely = (ids < VOCAB) & (values > float("-inf")) & ((values - peak) / temperature >= tl.load(min_p + row))
            bound = kept + ids * 0.0
            is_tie = likely & (keys == least) & (bound < _ALL)
            rank = tl.cumsum(is_tie.to(tl.int32), axis=0)
            taken = likely & ((keys > least) | ((keys == least) & (bound >= _ALL)))
            taken = taken | (is_tie & (rank <= mine))
            each = tl.where(taken, tl.exp((values - peak) / temperature), 0.0)
            inner = before + tl.cumsum(each, axis=0)
            last = tl.max(tl.where(each > 0.0, ids, 0), axis=0)
            token = tl.minimum(tl.min(tl.where((inner > wanted) & (each > 0.0), ids, VOCAB), axis=0), last)
        tl.store(tokens + row, tl.minimum(token, VOCAB - 1))
        tl.store(highest + row, peak)


def draw_shaped(
    logits: Tensor,
    inputs: Tensor,
    positions: Tensor,
    shapes: Shapes,
    edits: Edits,
    masks: Tensor,
    tokens: Tensor,
    highest: Tensor,
    space: ShapeSpace,
    *,
    has_k: bool,
    chained: bool = False,
) -> None:
    """Draw a token for each active row of `logits` [T, vocab], which changes, to `tokens`, and its largest logit after
    all changes to `highest`. `inputs`: the tokens of which `logits` are, at these positions. `masks`: int32 [most,
    words], bits of the allowed tokens. `has_k`: whether some row has top-k."""
    rows, vocab = logits.shape
    chunks = space.peaks.shape[1]
    grid, block = (rows, chunks), triton.next_power_of_2(chunks + 1)
    shape = {"VOCAB": vocab, "CHAINED": chained, "launch_pdl": chained}
    blocks = {"CHUNKS": chunks, "BLOCK": block, **shape}
    one: Any = _edit[(rows,)]  # the first of a graph
    one(
        logits, inputs, positions, shapes.active, shapes.slots, shapes.adds, shapes.free_from, *edits,
        MOST=edits.ids.shape[1], BLOCK=128, num_warps=4, VOCAB=vocab, CHAINED=False,
    )  # fmt: skip
    two: Any = _penalise[grid]
    two(
        logits, shapes.active, shapes.slots, shapes.masks, masks, edits.counts,
        shapes.repetition, shapes.presence, shapes.frequency, space.peaks, space.places,
        WORDS=triton.cdiv(vocab, 32), CHUNKS=chunks, num_warps=4, **EXACT, **shape,
    )  # fmt: skip
    top_k, top_p = shapes.top_k, shapes.top_p
    stride = space.lows.shape[1]
    found = space.tallies, space.lows, space.aims, space.above
    narrow: Any = _narrow[grid]
    for limits, counts in ((top_k, True), (top_p, False)) if has_k else ((top_p, False),):
        for index in range(PASSES):
            narrow(
                logits, shapes.temperatures, limits, shapes.active, space.peaks, *found, space.edges, top_k, stride,
                PASS=index, COUNTS=counts, AFTER_COUNTS=has_k, num_warps=4, **blocks,
            )  # fmt: skip
    weigh: Any = _weigh[grid]
    weigh(
        logits, shapes.temperatures, top_k, top_p, shapes.min_p, shapes.active, space.peaks, space.sums, space.ties,
        *found, space.edges, space.room, stride, HAS_K=has_k, num_warps=4, **blocks,
    )  # fmt: skip
    choose: Any = _choose[(rows,)]
    choose(
        logits, shapes.temperatures, shapes.uniforms, shapes.min_p, shapes.active, space.peaks, space.places,
        space.sums, space.ties, space.edges, space.room, tokens, highest, stride, num_warps=4, **blocks,
    )  # fmt: skip
