"""The low-rank terms of adapters. The rows of a call may have different adapters.

Memory for adapters consists of pages. A page holds 16 ranks of one adapter for a group of matrices with the same input:
of `a` [pages, matrices, 16, K], and of `b` [pages, N, 16] for the stacked matrices. `shrink` computes a @ x; the
matrix product itself then adds b @ (a @ x) to its sum by `add_terms`, before it rounds. Terms of other rows' adapters
add zeros, so the bits of a row depend on its own adapters only.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu.launch import EXACT, start, wait
from specialist.ops.gpu.norm import CHUNK, PARTS, inverse_root, sum_of_parts, sum_parts

RANKS = tl.constexpr(16)  # of a page: what one instruction of a tensor core sums up


class Rows(NamedTuple):
    """Which pages the rows of a call use. All int32, on the device."""

    pages: Tensor  # [1 + most pages]: the number of pages in use, then their ids; the pages of an adapter are together
    firsts: Tensor  # [T], the place in `pages` of a row's first page, without the number
    counts: Tensor  # [T], the number of pages of a row


class Terms(NamedTuple):
    """What the product of a group of matrices adds. Matrix i begins at row `edges[i]` of the stacked matrices."""

    b: Tensor
    low: Tensor  # [T, matrices, ranks], the result of `shrink`
    rows: Rows
    edges: tuple[int, int]  # where the second and the third matrix begin; the number of rows if there is none


@triton.jit(do_not_specialize=["num_rows", "width"])
def _shrink(
    x, gains, normed, a, pages, firsts, counts, low, eps, num_rows, width,
    K: tl.constexpr, MATRICES: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr, STEP: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """ROWS rows of x, one matrix, and every n-th page of the adapters of these rows, for n programs. A single row is
    first normed if there are `gains`."""
    start(CHAINED)
    matrix, turn = tl.program_id(1), tl.program_id(2)
    MODEL: tl.constexpr = x.dtype.element_ty
    PART: tl.constexpr = (K + PARTS - 1) // PARTS
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = tokens < num_rows
    firsts_here = tl.load(firsts + tokens, mask=exists, other=0)
    counts_here = tl.load(counts + tokens, mask=exists, other=0)
    lowest, stop = 0, tl.load(pages)
    if ROWS == 1:
        lowest = tl.max(firsts_here, axis=0)
        stop = lowest + tl.max(counts_here, axis=0)
    offsets = (tl.arange(0, PARTS) * PART)[:, None, None]
    wait(CHAINED)
    at_x = x + tokens.to(tl.int64)[None, :, None] * K + offsets
    scale = tl.full((1, 1, 1), 1.0, tl.float32)
    if gains is not None:
        columns = tl.arange(0, CHUNK)[None, None, :]
        squares = tl.zeros((PARTS, ROWS), tl.float32)
        for done in tl.static_range(0, PART, CHUNK):
            inside = (done + columns < PART) & (offsets + done + columns < K)
            values = tl.load(at_x + done + columns, mask=inside, other=0.0).to(tl.float32)
            squares += tl.sum(values * values, axis=2)
        scale = inverse_root(sum_parts(squares), eps, K)[None, :, None]
        if normed is not None:
            if (matrix == 0) & (turn == 0):
                for done in tl.static_range(0, PART, CHUNK):
                    inside = (done + columns < PART) & (offsets + done + columns < K)
                    values = tl.load(at_x + done + columns, mask=inside, other=0.0).to(tl.float32) * scale
                    values *= tl.load(gains + offsets + done + columns, mask=inside, other=0.0).to(tl.float32)
                    at_normed = normed + tokens.to(tl.int64)[None, :, None] * K + offsets + done + columns
                    tl.store(at_normed, values.to(MODEL), mask=inside)
    span = tl.arange(0, STEP)[None, None, :]
    ranks = tl.arange(0, RANKS)
    each = tl.arange(0, BLOCK_M)
    for place in range(lowest + turn, stop, tl.num_programs(2)):
        owns = (place >= firsts_here) & (place < firsts_here + counts_here)
        if tl.max(owns.to(tl.int32), axis=0) > 0:
            page = tl.load(pages + 1 + place).to(tl.int64)
            at_a = a + (page * MATRICES + matrix) * (RANKS * K) + ranks[None, :, None] * K + offsets
            total = tl.zeros((PARTS, RANKS, BLOCK_M), tl.float32)
            for begin in range(0, PART, STEP):
                filled = (begin + span < PART) & (offsets + begin + span < K)
                part_x = tl.load(at_x + begin + span, mask=filled & exists[None, :, None], other=0.0)
                if gains is not None:
                    gain = tl.load(gains + offsets + begin + span, mask=filled, other=0.0).to(tl.float32)
                    part_x = (part_x.to(tl.float32) * scale * gain).to(MODEL)
                if ROWS < BLOCK_M:
                    part_x = tl.broadcast_to(part_x, (PARTS, BLOCK_M, STEP))
                part_a = tl.load(at_a + begin + span, mask=filled, other=0.0)
                total = tl.dot(part_a, tl.trans(part_x, 0, 2, 1), total, input_precision="ieee")
            found = sum_of_parts(total).to(MODEL)
            if ROWS < BLOCK_M:
                row = tl.program_id(0) + each * 0
                rank = place - lowest
                kept = each == 0
            else:
                row = tokens
                rank = place - firsts_here
                kept = owns
            at = (row.to(tl.int64) * MATRICES + matrix) * width + rank * RANKS
            tl.store(low + at[None, :] + ranks[:, None], found, mask=kept[None, :])


def shrink(
    x: Tensor,
    a: Tensor,
    rows: Rows,
    low: Tensor,
    *,
    norm: Tensor | None = None,
    normed: Tensor | None = None,
    eps: float = 0.0,
    most_pages: int = 1,
    chained: bool = False,
) -> Tensor:
    """low [T, matrices, ranks] = a @ x for x [T, K]. With `norm`, x is normed first, and the result is written to
    `normed` if that is given. `most_pages`: of a row, or of all rows; it affects only speed."""
    num_rows, columns = x.shape
    alone = norm is not None or num_rows <= MOST_ALONE
    tiles = num_rows if alone else triton.cdiv(num_rows, _TOGETHER)
    turns = max(1, min(most_pages, 256 // (tiles * a.shape[1])))
    launch: Any = _shrink[(tiles, a.shape[1], turns)]
    launch(
        x, norm, normed, a, rows.pages, rows.firsts, rows.counts, low, eps, num_rows, low.shape[2],
        K=columns, MATRICES=a.shape[1], ROWS=1 if alone else _TOGETHER, BLOCK_M=8 if alone else _TOGETHER,
        STEP=CHUNK.value if alone and x.element_size() == 2 else 64, CHAINED=chained, num_warps=4, num_stages=2,
        launch_pdl=chained, **EXACT,
    )  # fmt: skip
    return low


MOST_ALONE = 128  # up to here, each row has a program of its own
_TOGETHER = 64


@triton.jit
def load_b(b, pages, begin, rows, N: tl.constexpr, AT_ONCE: tl.constexpr):
    """Return AT_ONCE ranks of these rows of b: the pages from place `begin` on, and 0 after the last."""
    each = tl.arange(0, AT_ONCE)
    place = begin + each // RANKS
    exists = place < tl.load(pages)
    page = tl.load(pages + 1 + place, mask=exists, other=0).to(tl.int64)
    at = rows.to(tl.int64)[:, None] * RANKS + (page * (N * RANKS) + each % RANKS)[None, :]
    at = tl.max_contiguous(tl.multiple_of(at, (1, RANKS)), (1, RANKS))
    return tl.load(b + at, mask=exists[None, :], other=0.0)


@triton.jit
def _add_pages(
    total, part, begin, low, firsts_here, counts_here, width, rows, tokens,
    MATRICES: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, WITHIN_ONE: tl.constexpr,
):  # fmt: skip
    each = tl.arange(0, part.shape[1])
    behind = (begin + each // RANKS)[None, :] - firsts_here[:, None]
    owns = (behind >= 0) & (behind < counts_here[:, None])
    matrix_of = (rows >= SECOND).to(tl.int32) + (rows >= THIRD).to(tl.int32)
    at = tokens.to(tl.int64)[:, None] * (MATRICES * width) + behind * RANKS + (each % RANKS)[None, :]
    at = tl.max_contiguous(tl.multiple_of(at, (1, RANKS)), (1, RANKS))
    if WITHIN_ONE:
        mine = tl.load(low + tl.multiple_of(tl.min(matrix_of, axis=0) * width, RANKS) + at, mask=owns, other=0.0)
        total = tl.dot(part, tl.trans(mine), total, input_precision="ieee")
    else:
        for matrix in tl.static_range(MATRICES):
            mine = tl.load(low + tl.multiple_of(matrix * width, RANKS) + at, mask=owns, other=0.0)
            own = tl.where((matrix_of == matrix)[:, None], part, 0.0)
            total = tl.dot(own, tl.trans(mine), total, input_precision="ieee")
    return total


@triton.jit
def add_terms(
    total, first_b, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
    N: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add the terms to total [rows, tokens]. `first_b`: what `load_b` returns for the first pages, or None."""
    WITHIN_ONE: tl.constexpr = (SECOND >= N) or (not GATED and SECOND % BLOCK_N == 0 and THIRD % BLOCK_N == 0)
    MATRICES: tl.constexpr = 1 + (SECOND < N) + (THIRD < N)
    firsts_here = tl.load(firsts + tokens, mask=tokens < num_rows, other=0)
    counts_here = tl.load(counts + tokens, mask=tokens < num_rows, other=0)
    count = tl.load(pages)
    begin = 0
    if first_b is not None:
        total = _add_pages(
            total, first_b, 0, low, firsts_here, counts_here, width, rows, tokens, MATRICES, SECOND, THIRD, WITHIN_ONE
        )
        begin = AT_ONCE // RANKS
    for place in range(begin, count, AT_ONCE // RANKS):
        is_here = (firsts_here < place + AT_ONCE // RANKS) & (firsts_here + counts_here > place)
        if tl.max(is_here.to(tl.int32), axis=0) > 0:
            part = load_b(b, pages, place, rows, N, AT_ONCE)
            total = _add_pages(
                total, part, place, low, firsts_here, counts_here, width, rows, tokens, MATRICES, SECOND, THIRD,
                WITHIN_ONE,
            )  # fmt: skip
    return total


def reference_terms(x: Tensor, a: Tensor, b: Tensor, rows: Rows, edges: tuple[int, int]) -> Tensor:
    """Return what `shrink` and `add_terms` add to a product of x, in float64, rounded in between as they round."""
    out = torch.zeros(len(x), b.shape[1], dtype=torch.float64, device=x.device)
    bounds = [0, *edges, b.shape[1]]
    for token, (first, count) in enumerate(zip(rows.firsts.tolist(), rows.counts.tolist(), strict=True)):
        for page in rows.pages[1 + first : 1 + first + count].tolist():
            for matrix in range(a.shape[1]):
                low = (a[page, matrix].double() @ x[token].double()).to(x.dtype).double()
                its = slice(bounds[matrix], bounds[matrix + 1])
                out[token, its] += b[page, its].double() @ low
    return out
