"""Products with quantised matrices, and their embedding. The result has the bits of `linear.linear` with the matrix in
the model's type: a program unpacks its weights to that type in registers, and sums them in the same order.

`_few` is for few rows and sums in parts: a warp sums one part. `_tiled` is for other sums and for more rows. For more
rows than MOST_ROWS, `_dense` unpacks the matrix first.

The compiler takes the weights to a tensor core without moving them between threads only if a program makes no numbers
of its own on the way; the positions and masks of a word's fields are therefore loaded.
"""

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu import linear, norm
from specialist.ops.gpu.launch import EXACT, start, wait
from specialist.ops.gpu.linear import PARTS, finish, places, weight_rows
from specialist.ops.gpu.low_rank import Terms, add_terms, load_b
from specialist.ops.gpu.norm import sum_of_parts
from specialist.ops.gpu.packing import MOST_DENSE, Matrix, Quantised

STEP = tl.constexpr(128)  # columns that a program unpacks at a time
MOST_ROWS = 128  # the most rows of x for which a program unpacks its weights itself


@triton.jit
def _read_fields(fields, BITS: tl.constexpr):
    """Return where the two halves of a word begin, and the mask and the mark of each field of a half. With the mark, a
    field is the end of a float32's mantissa: its value is the mark's and its own."""
    each = tl.arange(0, 16 // BITS)
    return tl.load(fields + tl.arange(0, 2)), tl.load(fields + 2 + each), tl.load(fields + 2 + 16 // BITS + each)


@triton.jit
def _unpack(words, ranges, halves, masks, marks, BITS: tl.constexpr, MODEL: tl.constexpr):
    """Return the weights [R, columns] of words [R, columns * BITS / 32] and ranges [R, columns / 32]. The product of an
    integer and a scale is exact in float32, so a weight is rounded as `Affine.dense` rounds it."""
    R: tl.constexpr = words.shape[0]
    S: tl.constexpr = words.shape[1] // 16
    EACH: tl.constexpr = 16 // BITS
    mine = tl.permute(tl.reshape(words, (R, S, 4, 4)), (0, 1, 3, 2))  # [row, stretch, word, thread]
    half = tl.expand_dims(tl.expand_dims(mine, 4) >> halves[None, None, None, None, :], 5)
    marked = (half & masks[None, None, None, None, None, :]) | marks[None, None, None, None, None, :]
    q = marked.to(tl.float32, bitcast=True) - marks.to(tl.float32, bitcast=True)[None, None, None, None, None, :]
    scale = (ranges & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    minimum = ((ranges >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    if BITS == 8:  # two words share a range
        scale = tl.broadcast_to(tl.reshape(scale, (R, 2 * S, 1)), (R, 2 * S, 2))
        minimum = tl.broadcast_to(tl.reshape(minimum, (R, 2 * S, 1)), (R, 2 * S, 2))
    scale, minimum = tl.reshape(scale, (R, S, 4, 1, 1, 1)), tl.reshape(minimum, (R, S, 4, 1, 1, 1))
    values = tl.fma(q, tl.broadcast_to(scale, q.shape), tl.broadcast_to(minimum, q.shape)).to(MODEL)
    values = tl.reshape(values, (R, S, 4, 4, EACH // 2, 2, 2))  # [.., word, thread, step, half, pair]
    return tl.reshape(tl.permute(values, (0, 1, 2, 4, 5, 3, 6)), (R, S * 32 * EACH))


@triton.jit(do_not_specialize=["num_rows", "width"])
def _few(
    x, words, ranges, fields, bias, residual, out, b, low, pages, firsts, counts, width, num_rows,
    N: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HELD: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """HELD: the program keeps its words in registers before the kernel that computes x has ended."""
    start(CHAINED)
    pid = tl.program_id(0)
    STACKED: tl.constexpr = 2 * N if GATED else N
    MODEL: tl.constexpr = x.dtype.element_ty
    part: tl.constexpr = K // PARTS
    wide: tl.constexpr = K * BITS // 32  # words of a row
    step: tl.constexpr = STEP * BITS // 32
    groups: tl.constexpr = STEP // 32
    rows = weight_rows(pid, N, GATED, BLOCK_N)
    four = tl.arange(0, PARTS)[:, None, None]
    at_w = words + rows.to(tl.int64)[None, :, None] * wide + four * (wide // PARTS) + tl.arange(0, step)[None, None, :]
    at_r = ranges + rows.to(tl.int64)[None, :, None] * (K // 32) + four * (part // 32)
    at_r += tl.arange(0, groups)[None, None, :]
    halves, masks, marks = _read_fields(fields, BITS)
    held = ()
    if HELD:
        for index in tl.static_range(part // STEP):
            held = held + ((tl.load(at_w + index * step), tl.load(at_r + index * groups)),)
    offsets = None
    if bias is not None:
        offsets = tl.load(bias + rows).to(tl.float32)
    at, kept = places(0, pid, num_rows, N, GATED, BLOCK_M, BLOCK_N)
    first_b = None
    if low is not None:
        first_b = load_b(b, pages, 0, rows, STACKED, 128)
    wait(CHAINED)
    before = None
    if residual is not None:
        before = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
    tokens = tl.arange(0, ROWS)
    at_x = x + tokens[None, :, None] * K + four * part + tl.arange(0, STEP)[None, None, :]
    inside = (tokens < num_rows)[None, :, None]
    total = tl.zeros((PARTS, BLOCK_N, BLOCK_M), tl.float32)
    if HELD:
        parts_x = ()
        for index in tl.static_range(part // STEP):
            parts_x = parts_x + (tl.load(at_x + index * STEP, mask=inside, other=0.0),)
        for index in tl.static_range(part // STEP):
            flat_w = tl.reshape(held[index][0], (PARTS * BLOCK_N, step))
            flat_r = tl.reshape(held[index][1], (PARTS * BLOCK_N, groups))
            weights = _unpack(flat_w, flat_r, halves, masks, marks, BITS, MODEL)
            one = parts_x[index]
            if ROWS < BLOCK_M:
                one = tl.broadcast_to(one, (PARTS, BLOCK_M, STEP))
            total = tl.dot(tl.reshape(weights, (PARTS, BLOCK_N, STEP)), tl.trans(one, 0, 2, 1), total)
    else:
        for index in range(part // STEP):
            one = tl.load(at_x + index * STEP, mask=inside, other=0.0)
            if ROWS < BLOCK_M:
                one = tl.broadcast_to(one, (PARTS, BLOCK_M, STEP))
            flat_w = tl.reshape(tl.load(at_w + index * step), (PARTS * BLOCK_N, step))
            flat_r = tl.reshape(tl.load(at_r + index * groups), (PARTS * BLOCK_N, groups))
            weights = _unpack(flat_w, flat_r, halves, masks, marks, BITS, MODEL)
            total = tl.dot(tl.reshape(weights, (PARTS, BLOCK_N, STEP)), tl.trans(one, 0, 2, 1), total)
    summed = sum_of_parts(total)
    if low is not None:
        summed = add_terms(
            summed, first_b, b, low, pages, firsts, counts, width, rows, tl.arange(0, BLOCK_M), num_rows,
            STACKED, SECOND, THIRD, GATED, BLOCK_N, 128,
        )  # fmt: skip
    finish(summed, offsets, before, at, kept, out, GATED, BLOCK_M, BLOCK_N, MODEL)


@triton.jit
def _product(
    x, words, ranges, fields, rows, pid_m, first, num_rows,
    K: tl.constexpr, PART: tl.constexpr, BITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return float32 [BLOCK_N, BLOCK_M], over PART columns from `first`."""
    MODEL: tl.constexpr = x.dtype.element_ty
    PADDED: tl.constexpr = (K + STEP - 1) // STEP * STEP
    wide: tl.constexpr = PADDED * BITS // 32
    step: tl.constexpr = STEP * BITS // 32
    groups: tl.constexpr = STEP // 32
    halves, masks, marks = _read_fields(fields, BITS)
    tokens = tl.minimum(pid_m * BLOCK_M + tl.arange(0, BLOCK_M), num_rows - 1)  # a row too many is not stored
    columns = first + tl.arange(0, STEP)
    at_w = words + rows.to(tl.int64)[:, None] * wide + first * BITS // 32 + tl.arange(0, step)[None, :]
    at_r = ranges + rows.to(tl.int64)[:, None] * (PADDED // 32) + first // 32 + tl.arange(0, groups)[None, :]
    at_x = x + tokens.to(tl.int64)[:, None] * K + columns[None, :]
    part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for index in range(0, (PART + STEP - 1) // STEP):
        flat_w, flat_r = tl.load(at_w + index * step), tl.load(at_r + index * groups)
        weights = _unpack(flat_w, flat_r, halves, masks, marks, BITS, MODEL)
        if PART // STEP * STEP == PART:
            one = tl.load(at_x + index * STEP)
        else:
            one = tl.load(at_x + index * STEP, mask=(columns < K - index * STEP)[None, :], other=0.0)
        part = tl.dot(weights, tl.trans(one), part)
    return part


@triton.jit
def _end(
    total, offsets, residual, at, kept, out, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
    N: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SECOND: tl.constexpr,
    THIRD: tl.constexpr, MODEL: tl.constexpr,
):  # fmt: skip
    if low is not None:
        total = add_terms(
            total, None, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
            2 * N if GATED else N, SECOND, THIRD, GATED, BLOCK_N, 64,
        )  # fmt: skip
    before = None
    if residual is not None:
        before = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
    finish(total, offsets, before, at, kept, out, GATED, BLOCK_M, BLOCK_N, MODEL)


@triton.jit(do_not_specialize=["num_rows", "width"])
def _tiled(
    x, words, ranges, fields, bias, residual, out, partial, arrived, b, low, pages, firsts, counts, width, num_rows,
    N: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr, SUMS: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """SUMS: the number of parts. Each has a program, of which the last to arrive adds them up."""
    start(CHAINED)
    num_m = tl.cdiv(num_rows, BLOCK_M)
    pid_m = tl.program_id(0) % num_m
    pid_n = tl.program_id(0) // num_m
    part: tl.constexpr = K // SUMS
    tokens = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    index = tl.program_id(1)
    rows = weight_rows(pid_n, N, GATED, BLOCK_N)
    offsets = None
    if bias is not None:
        offsets = tl.load(bias + rows).to(tl.float32)
    at, kept = places(pid_m, pid_n, num_rows, N, GATED, BLOCK_M, BLOCK_N)
    wait(CHAINED)
    total = _product(x, words, ranges, fields, rows, pid_m, index * part, num_rows, K, part, BITS, BLOCK_M, BLOCK_N)
    if SUMS > 1:
        here = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        mine = partial + tl.program_id(0).to(tl.int64) * SUMS * BLOCK_N * BLOCK_M
        tl.store(mine + index * BLOCK_N * BLOCK_M + here, total)
        tl.debug_barrier()
        if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == SUMS - 1:
            total = tl.load(mine + here, cache_modifier=".cg")
            for each in range(1, SUMS):
                total += tl.load(mine + each * BLOCK_N * BLOCK_M + here, cache_modifier=".cg")
            _end(
                total, offsets, residual, at, kept, out, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
                N, GATED, BLOCK_M, BLOCK_N, SECOND, THIRD, x.dtype.element_ty,
            )  # fmt: skip
            tl.store(arrived + tl.program_id(0), 0)
    else:
        _end(
            total, offsets, residual, at, kept, out, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
            N, GATED, BLOCK_M, BLOCK_N, SECOND, THIRD, x.dtype.element_ty,
        )  # fmt: skip


@triton.jit
def _dense(
    words, ranges, fields, out,
    N: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    start(CHAINED)
    PADDED: tl.constexpr = (K + STEP - 1) // STEP * STEP
    step: tl.constexpr = STEP * BITS // 32
    groups: tl.constexpr = STEP // 32
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    stored = tl.minimum(rows, N - 1).to(tl.int64)[:, None]
    index = tl.program_id(1)
    halves, masks, marks = _read_fields(fields, BITS)
    flat_w = tl.load(words + stored * (PADDED * BITS // 32) + index * step + tl.arange(0, step)[None, :])
    flat_r = tl.load(ranges + stored * (PADDED // 32) + index * groups + tl.arange(0, groups)[None, :])
    weights = _unpack(flat_w, flat_r, halves, masks, marks, BITS, out.dtype.element_ty)
    columns = index * STEP + tl.arange(0, STEP)
    wait(CHAINED)
    tl.store(out + stored * K + columns[None, :], weights, mask=(rows < N)[:, None] & (columns < K)[None, :])


@triton.jit
def _embed(
    tokens, sources, sampled, taken, words, ranges, out,
    SIZE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, FED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    token = norm.token_of(row, tokens, sources, sampled, taken, FED).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    WIDE: tl.constexpr = (SIZE + STEP - 1) // STEP * STEP * BITS // 32
    STEPS: tl.constexpr = 8 // BITS  # of a word
    word = columns // (64 * STEPS) * 16 + columns // 2 % 4 * 4 + columns // (16 * STEPS) % 4
    field = columns // 16 % STEPS * 4 + columns // 8 % 2 * 2 + columns % 2
    q = (tl.load(words + token * WIDE + word, mask=inside, other=0) >> (field * BITS)) & ((1 << BITS) - 1)
    group = tl.load(ranges + token * (WIDE // BITS) + columns // 32, mask=inside, other=0)
    scale = (group & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    minimum = ((group >> 16) & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    values = tl.fma(q.to(tl.float32), scale, minimum).to(out.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * SIZE + columns, values, mask=inside)


class Tile(NamedTuple):
    block_m: int
    block_n: int
    warps: int
    stages: int


def choose_tile(num_rows: int, shape: tuple[int, int]) -> Tile:
    """Return the tile for `num_rows` rows of x. It affects only speed."""
    if num_rows <= 16:
        return Tile(16, 32, 2, 5)
    if num_rows <= 32:
        return Tile(32, 64, 4, 5)
    if num_rows <= 64:
        return Tile(64, 64, 4, 4)
    return Tile(128, 64 if linear.parts_of(*shape) > 1 else 128, 8, 4)


def is_held(num_rows: int, weight: Quantised) -> bool:
    """Return whether a program of `_few` has registers for its words and for x."""
    registers = weight.columns * (2 * weight.bits + _height(num_rows)) // 256
    return weight.columns <= 4096 and registers <= _MOST_REGISTERS


_MOST_REGISTERS = 208
_FEW = 16  # the most rows for `_few`


def _height(num_rows: int) -> int:
    """Return how many rows of x a program of `_few` loads."""
    return 1 if num_rows == 1 else 8 if num_rows <= 8 else _FEW


def fields_of(bits: int) -> list[int]:
    """Return what `_read_fields` reads."""
    places = range(0, 16, bits)
    return [0, 16, *(((1 << bits) - 1) << place for place in places), *(127 + 23 - place << 23 for place in places)]


class Workspace(linear.Workspace):
    """Partial sums, and the weights of one matrix in the model's type. All products of a stream share one."""

    def __init__(self, device: torch.device, matrices: Iterable[Matrix], dtype: torch.dtype) -> None:
        super().__init__(device)
        sizes = [prod(each.shape) for each in matrices if isinstance(each, Quantised)]
        largest = max((size for size in sizes if size <= MOST_DENSE), default=0)
        self.dense = torch.empty(largest, dtype=dtype, device=device)
        self.fields = {bits: torch.tensor(fields_of(bits), dtype=torch.int32, device=device) for bits in (4, 8)}


def norms_within(num_rows: int, weight: Matrix) -> bool:
    """Return whether `multiply` can norm x itself."""
    return not isinstance(weight, Quantised) and linear.norms_within(num_rows, weight)


def multiply(
    x: Tensor,
    weight: Matrix,
    workspace: Workspace,
    out: Tensor,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    terms: Terms | None = None,
    gated: bool = False,
    chained: bool = False,
) -> Tensor:
    """The same as `linear.linear`, for either kind of matrix."""
    added: dict[str, Any] = {"bias": bias, "terms": terms, "gated": gated, "residual": residual}
    if not isinstance(weight, Quantised):
        return linear.linear(x, weight, workspace, out, norm=norm, eps=eps, chained=chained, **added)
    if norm is not None:
        raise ValueError("a product with a quantised matrix does not norm its input")
    if len(x) <= MOST_ROWS:
        return _multiply(x, weight, workspace, out, chained=chained, **added)
    if prod(weight.shape) <= len(workspace.dense):
        whole = unpack(weight, workspace, chained=chained)
        return linear.linear(x, whole, workspace, out, **added)  # not chained: it reads weights that are still written
    for first in range(0, len(x), MOST_ROWS):
        its = slice(first, first + MOST_ROWS)
        if residual is not None:
            added["residual"] = residual[its]
        if terms is not None:
            rows = terms.rows._replace(firsts=terms.rows.firsts[its], counts=terms.rows.counts[its])
            added["terms"] = terms._replace(low=terms.low[its], rows=rows)
        _multiply(x[its], weight, workspace, out[its], chained=chained, **added)
    return out


def unpack(weight: Quantised, workspace: Workspace, *, chained: bool = False) -> Tensor:
    """Return the matrix in the type of `workspace.dense`, in that memory."""
    rows, columns = weight.shape
    whole = workspace.dense[: rows * columns].view(rows, columns)
    launch: Any = _dense[(triton.cdiv(rows, 16), weight.padded // STEP.value)]
    launch(
        weight.words, weight.ranges, workspace.fields[weight.bits], whole,
        N=rows, K=columns, BITS=weight.bits, BLOCK_N=16, CHAINED=chained, num_warps=4, launch_pdl=chained, **EXACT,
    )  # fmt: skip
    return whole


def _multiply(
    x: Tensor,
    weight: Quantised,
    workspace: Workspace,
    out: Tensor,
    *,
    bias: Tensor | None,
    residual: Tensor | None,
    terms: Terms | None,
    gated: bool,
    chained: bool,
) -> Tensor:
    num_rows, (rows, columns) = len(x), weight.shape
    sums = linear.parts_of(rows, columns)
    edges = (rows, rows) if terms is None else terms.edges
    added = (None,) * 5 + (0,) if terms is None else (terms.b, terms.low, *terms.rows, terms.low.shape[2])
    shape = {"N": rows // 2 if gated else rows, "K": columns, "BITS": weight.bits, "GATED": gated, "CHAINED": chained}
    shape |= {"launch_pdl": chained, "SECOND": edges[0], "THIRD": edges[1], **EXACT}
    matrix = weight.words, weight.ranges, workspace.fields[weight.bits]
    launch: Any
    if sums > 1 and num_rows <= _FEW:
        launch = _few[(triton.cdiv(rows, 16),)]
        launch(
            x, *matrix, bias, residual, out, *added, num_rows,
            ROWS=_height(num_rows), BLOCK_M=max(8, _height(num_rows)), BLOCK_N=16, HELD=is_held(num_rows, weight),
            num_warps=4, num_stages=4, **shape,
        )  # fmt: skip
        return out
    tile = choose_tile(num_rows, weight.shape)
    launch = _tiled[(triton.cdiv(num_rows, tile.block_m) * triton.cdiv(rows, tile.block_n), sums)]
    launch(
        x, *matrix, bias, residual, out, workspace.partial, workspace.arrived, *added, num_rows,
        SUMS=sums, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, num_warps=tile.warps, num_stages=tile.stages, **shape,
    )  # fmt: skip
    return out


def embed(
    tokens: Tensor,
    table: Matrix,
    out: Tensor,
    sources: Tensor | None = None,
    sampled: Tensor | None = None,
    taken: Tensor | None = None,
) -> Tensor:
    """The same as `norm.embed`, for either kind of matrix."""
    if not isinstance(table, Quantised):
        return norm.embed(tokens, table, out, sources, sampled, taken)
    size = table.columns
    launch: Any = _embed[(len(out),)]
    launch(
        tokens, sources, sampled, taken, table.words, table.ranges, out,
        SIZE=size, BITS=table.bits, BLOCK=triton.next_power_of_2(size), FED=sampled is not None,
    )  # fmt: skip
    return out
