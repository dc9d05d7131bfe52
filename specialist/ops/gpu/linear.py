"""Matrix products for any number of rows, with the norm before them and the activation or the residual after them.

A sum over K has the same order for every number of rows: the weight's shape fixes how many parts it has, each part is
summed from left to right in steps of one tensor core instruction, and the parts are added up from left to right. A
tensor core gives the same bits for every shape of tile, and whichever factor is the weight.

Five kernels share that order. `_held` is for few rows: the warps of a program sum one part each, and the program keeps
its weights in registers before the kernel that computes x has ended. `_streamed` does the same for weights too large to
keep. `_tiled` is for more rows, and `prompt_linear.py` and `hopper_linear.py` for more than a decode step has.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specialist.ops.gpu import prompt_linear
from specialist.ops.gpu.launch import EXACT, prefetch, start, wait
from specialist.ops.gpu.low_rank import Terms, add_terms, load_b
from specialist.ops.gpu.norm import inverse_root, sum_of_parts, sum_parts

PARTS = tl.constexpr(4)
CHUNK = tl.constexpr(256)  # columns of a part that a warp keeps at a time


@triton.jit
def weight_rows(pid_n, N: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the BLOCK_N rows of the matrix. GATED: the first half are rows of the gate, the others those of `up`."""
    each = tl.arange(0, BLOCK_N)
    if GATED:
        half: tl.constexpr = BLOCK_N // 2
        rows = tl.minimum(pid_n * half + each % half, N - 1) + each // half * N
    else:
        rows = tl.minimum(pid_n * BLOCK_N + each, N - 1)
    return rows


@triton.jit
def places(pid_m, pid_n, num_rows, N: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return where the results are in `out`, [BLOCK_N, BLOCK_M] or half as high if GATED, and which of them exist."""
    tokens = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    height: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    columns = pid_n * height + tl.arange(0, height)
    return tokens.to(tl.int64)[None, :] * N + columns[:, None], (tokens < num_rows)[None, :] & (columns < N)[:, None]


@triton.jit
def finish(
    total, offsets, before, at, kept, out, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MODEL: tl.constexpr,
):  # fmt: skip
    """Round to the model's type as the reference does after every operation, and store."""
    if offsets is not None:
        total = total.to(MODEL).to(tl.float32) + offsets[:, None]
    if GATED:
        half: tl.constexpr = BLOCK_N // 2
        gate, up = tl.split(tl.permute(tl.reshape(total.to(MODEL), (2, half, BLOCK_M)), (1, 2, 0)))
        wide = gate.to(tl.float32)
        silu = (wide / (1.0 + tl.exp(-wide))).to(MODEL)
        total = (silu.to(tl.float32) * up.to(tl.float32)).to(MODEL)
    if before is not None:
        total = total.to(MODEL).to(tl.float32) + before
    tl.store(out + at, total.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_rows", "width"])
def _held(
    x, w, norm, bias, residual, out, b, low, pages, firsts, counts, width, eps, num_rows,
    N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    start(CHAINED)
    pid = tl.program_id(0)
    STACKED: tl.constexpr = 2 * N if GATED else N
    part: tl.constexpr = K // PARTS
    rows = weight_rows(pid, N, GATED, BLOCK_N)
    columns = (tl.arange(0, PARTS) * part)[:, None, None] + tl.arange(0, CHUNK)[None, None, :]
    at_w = w + rows.to(tl.int64)[None, :, None] * K + columns
    kept_w, gains = (), ()
    for done in tl.static_range(0, part, CHUNK):
        kept_w = kept_w + (tl.load(at_w + done),)
        if norm is not None:
            gains = gains + (tl.load(norm + columns + done).to(tl.float32),)
    offsets = None
    if bias is not None:
        offsets = tl.load(bias + rows).to(tl.float32)
    at, kept = places(0, pid, num_rows, N, GATED, BLOCK_M, BLOCK_N)
    first_b = None
    if low is not None:
        first_b = load_b(b, pages, 0, rows, STACKED, 128)
    wait(CHAINED)
    before = None
    tokens = tl.arange(0, ROWS)
    at_x = x + tokens[None, :, None] * K + columns
    inside = (tokens < num_rows)[None, :, None]
    parts_x = ()
    for done in tl.static_range(0, part, CHUNK):
        parts_x = parts_x + (tl.load(at_x + done, mask=inside, other=0.0),)
    if residual is not None:
        before = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
    if norm is not None:
        squares = tl.zeros((PARTS, ROWS), tl.float32)
        for index in tl.static_range(part // CHUNK):
            wide = parts_x[index].to(tl.float32)
            squares += tl.sum(wide * wide, axis=2)
        scale = inverse_root(sum_parts(squares), eps, K)[None, :, None]
    total = tl.zeros((PARTS, BLOCK_N, BLOCK_M), tl.float32)
    for index in tl.static_range(part // CHUNK):
        one = parts_x[index]
        if norm is not None:
            one = (one.to(tl.float32) * scale * gains[index]).to(x.dtype.element_ty)
        if ROWS < BLOCK_M:
            one = tl.broadcast_to(one, (PARTS, BLOCK_M, CHUNK))
        total = tl.dot(kept_w[index], tl.trans(one, 0, 2, 1), total)
    summed = sum_of_parts(total)
    if low is not None:
        summed = add_terms(
            summed, first_b, b, low, pages, firsts, counts, width, rows, tl.arange(0, BLOCK_M), num_rows,
            STACKED, SECOND, THIRD, GATED, BLOCK_N, 128,
        )  # fmt: skip
    finish(summed, offsets, before, at, kept, out, GATED, BLOCK_M, BLOCK_N, x.dtype.element_ty)


@triton.jit(do_not_specialize=["num_rows", "width"])
def _streamed(
    x, w, bias, residual, out, b, low, pages, firsts, counts, width, num_rows,
    N: tl.constexpr, K: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SECOND: tl.constexpr, THIRD: tl.constexpr, PREFETCH: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    start(CHAINED)
    pid = tl.program_id(0)
    STACKED: tl.constexpr = 2 * N if GATED else N
    part: tl.constexpr = K // PARTS
    rows = weight_rows(pid, N, GATED, BLOCK_N)
    if PREFETCH:
        for index in tl.static_range(PARTS):
            prefetch(w + rows.to(tl.int64) * K + index * part, PREFETCH)
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
    tokens = tl.arange(0, BLOCK_M)
    columns = (tl.arange(0, PARTS) * part)[:, None, None] + tl.arange(0, BLOCK_K)[None, None, :]
    at_w = w + rows.to(tl.int64)[None, :, None] * K + columns
    at_x = x + tokens[None, :, None] * K + columns
    inside = (tokens < num_rows)[None, :, None]
    total = tl.zeros((PARTS, BLOCK_N, BLOCK_M), tl.float32)
    for done in range(0, part, BLOCK_K):
        one = tl.load(at_x + done, mask=inside, other=0.0)
        total = tl.dot(tl.load(at_w + done), tl.trans(one, 0, 2, 1), total)
    summed = sum_of_parts(total)
    if low is not None:
        summed = add_terms(
            summed, first_b, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
            STACKED, SECOND, THIRD, GATED, BLOCK_N, 128,
        )  # fmt: skip
    finish(summed, offsets, before, at, kept, out, GATED, BLOCK_M, BLOCK_N, x.dtype.element_ty)


@triton.jit
def _product(
    x, w, pid_m, pid_n, first, num_rows,
    N: tl.constexpr, K: tl.constexpr, PART: tl.constexpr, SUMS: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return float32 [BLOCK_N, BLOCK_M]: w [N, K] times x [M, K] transposed, over SUMS parts of PART columns from
    `first`. All parts are summed in one loop, so that loading never pauses between two of them."""
    rows = weight_rows(pid_n, N, GATED, BLOCK_N)
    tokens = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    FEW: tl.constexpr = BLOCK_M <= 16
    if FEW:  # rows too many are not read: thousands of programs that read the only row again would slow each other down
        exists = (tokens < num_rows)[:, None]
    else:
        tokens = tl.minimum(tokens, num_rows - 1)  # a row too many is not stored
    columns = first + tl.arange(0, BLOCK_K)
    at_w = w + rows.to(tl.int64)[:, None] * K + columns[None, :]
    at_x = x + tokens.to(tl.int64)[:, None] * K + columns[None, :]
    part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if PART % BLOCK_K == 0:
        steps: tl.constexpr = PART // BLOCK_K
        total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for step in range(0, SUMS * steps):
            part_w = tl.load(at_w + step * BLOCK_K)
            part_x = tl.load(at_x + step * BLOCK_K, mask=exists, other=0.0) if FEW else tl.load(at_x + step * BLOCK_K)
            part = tl.dot(part_w, tl.trans(part_x), part, input_precision="ieee")
            if SUMS > 1:  # known when the kernel is compiled; the inner condition is not
                if step % steps == steps - 1:
                    total += part
                    part = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        if SUMS > 1:
            part = total
    else:
        tl.static_assert(SUMS == 1)
        for done in range(0, PART, BLOCK_K):
            inside = (tl.arange(0, BLOCK_K) < PART - done)[None, :]
            part_w = tl.load(at_w + done, mask=inside, other=0.0)
            kept = inside & exists if FEW else inside
            part_x = tl.load(at_x + done, mask=kept, other=0.0)
            part = tl.dot(part_w, tl.trans(part_x), part, input_precision="ieee")
    return part


@triton.jit(do_not_specialize=["num_rows", "width"])
def _tiled(
    x, w, bias, residual, out, partial, arrived, b, low, pages, firsts, counts, width, num_rows,
    N: tl.constexpr, K: tl.constexpr, SUMS: tl.constexpr, SPREAD: tl.constexpr, GATED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SECOND: tl.constexpr, THIRD: tl.constexpr, PREFETCH: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """SUMS: the number of parts. SPREAD: one program for each of them, of which the last to arrive adds them up."""
    start(CHAINED)
    num_m = tl.cdiv(num_rows, BLOCK_M)
    if GROUP_M > 1:  # programs that run at the same time share rows of x and of w
        num_n = tl.num_programs(0) // num_m
        group = tl.program_id(0) // (GROUP_M * num_n)
        height = min(num_m - group * GROUP_M, GROUP_M)
        pid_m = group * GROUP_M + tl.program_id(0) % (GROUP_M * num_n) % height
        pid_n = tl.program_id(0) % (GROUP_M * num_n) // height
    else:
        pid_m = tl.program_id(0) % num_m
        pid_n = tl.program_id(0) // num_m
    part: tl.constexpr = K // SUMS
    model: tl.constexpr = x.dtype.element_ty
    STACKED: tl.constexpr = 2 * N if GATED else N
    tokens = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    index = tl.program_id(1)
    rows = weight_rows(pid_n, N, GATED, BLOCK_N)
    if PREFETCH:
        prefetch(w + rows.to(tl.int64) * K + index * part, PREFETCH)
    offsets, before = None, None
    if bias is not None:
        offsets = tl.load(bias + rows).to(tl.float32)
    at, kept = places(pid_m, pid_n, num_rows, N, GATED, BLOCK_M, BLOCK_N)
    wait(CHAINED)
    if SPREAD:
        if residual is not None:
            before = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
        total = _product(x, w, pid_m, pid_n, index * part, num_rows, N, K, part, 1, GATED, BLOCK_M, BLOCK_N, BLOCK_K)
        here = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        mine = partial + tl.program_id(0).to(tl.int64) * SUMS * BLOCK_N * BLOCK_M
        tl.store(mine + index * BLOCK_N * BLOCK_M + here, total)
        tl.debug_barrier()
        if tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == SUMS - 1:
            total = tl.load(mine + here, cache_modifier=".cg")
            for each in tl.static_range(1, SUMS):
                total += tl.load(mine + each * BLOCK_N * BLOCK_M + here, cache_modifier=".cg")
            if low is not None:
                total = add_terms(
                    total, None, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
                    STACKED, SECOND, THIRD, GATED, BLOCK_N, 64,
                )  # fmt: skip
            finish(total, offsets, before, at, kept, out, GATED, BLOCK_M, BLOCK_N, model)
            tl.store(arrived + tl.program_id(0), 0)
    else:
        total = _product(x, w, pid_m, pid_n, 0, num_rows, N, K, part, SUMS, GATED, BLOCK_M, BLOCK_N, BLOCK_K)
        if low is not None:
            total = add_terms(
                total, None, b, low, pages, firsts, counts, width, rows, tokens, num_rows,
                STACKED, SECOND, THIRD, GATED, BLOCK_N, 64,
            )  # fmt: skip
        if residual is not None:
            before = tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
        finish(total, offsets, before, at, kept, out, GATED, BLOCK_M, BLOCK_N, model)


class Tile(NamedTuple):
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


def num_parts(weight: Tensor) -> int:
    """Return the number of parts of the sum over K, which the weight's shape and type alone decide."""
    return parts_of(*weight.shape) if weight.element_size() == 2 else 1


def parts_of(rows: int, columns: int) -> int:
    """Return the number of parts for weights of 16 bits: several for matrices that would otherwise leave most of the
    GPU idle while few rows are computed."""
    several = columns % (PARTS.value * CHUNK.value) == 0 and (rows <= 4096 or rows * columns <= 1 << 23)
    return PARTS.value if several else 1


MOST_SPREAD = 128  # the most rows for which the parts of a sum have programs of their own
_FEW, MOST_HELD = 8, 16  # the most rows for `_held` and `_streamed`; weights kept for more than 8 must be small
_MOST_KEPT = 1 << 23  # the most weights that all programs together keep for more than 8 rows
_WIDEST_KEPT = 3072  # the most columns that a program can keep


def _is_held(num_rows: int, weight: Tensor) -> bool:
    is_small = weight.shape[1] <= _WIDEST_KEPT and (num_rows <= _FEW or weight.numel() <= _MOST_KEPT)
    return num_rows <= MOST_HELD and num_parts(weight) > 1 and is_small


def norms_within(num_rows: int, weight: Tensor) -> bool:
    """Return whether `linear` can norm x itself, which saves a kernel; only worth while for few rows."""
    return num_rows <= _FEW and _is_held(num_rows, weight)


def choose_tile(num_rows: int, weight: Tensor) -> Tile:
    """Return the tile for `num_rows` rows of x. It affects only speed."""
    rows, columns = weight.shape
    if weight.element_size() > 2:
        return Tile(16, 32, 32, 4, 2)  # no tensor core multiplies float32 exactly
    if num_parts(weight) == 1:
        if num_rows <= 16:
            return Tile(16, 64, 128, 4, 6)
        if num_rows <= 32:
            return Tile(32, 64, 128, 4, 4)
        if num_rows <= 64:
            return Tile(64, 64, 128, 4, 4) if rows <= 8192 else Tile(64, 64, 64, 4, 6)
        if num_rows <= 128:
            return Tile(128, 64, 64, 4, 6) if rows <= 8192 or columns <= 2048 else Tile(128, 128, 64, 4, 3)
        return Tile(256, 128, 64, 8, 3)
    if num_rows <= 64:
        return _deepest(Tile(16 if num_rows <= 16 else 32 if num_rows <= 32 else 64, 64, 128, 4, 4), rows)
    if num_rows <= 128:
        return _deepest(Tile(128, 64, 64, 4, 6), rows)
    return Tile(128, 128, 64, 8, 4)


_LEAST_K = 16  # columns that the compiler multiplies at a time
_PROCESSORS, _SHARED = 132, 227 << 10  # multiprocessors of an H100 or H200, and the shared memory of each in bytes


def _deepest(tile: Tile, rows: int) -> Tile:
    """Return the tile with as many stages, of those given, as let all programs of a split sum run at the same time."""
    programs = triton.cdiv(rows, tile.block_n) * PARTS.value
    for stages in range(tile.stages, 3, -1):
        size = (tile.block_m + tile.block_n) * tile.block_k * 2 * stages
        if _SHARED // (size + 1024) * _PROCESSORS >= programs:
            return tile._replace(stages=stages)
    return tile._replace(stages=3)


class Workspace:
    """Partial sums of `linear`. All products of a stream share one."""

    def __init__(self, device: torch.device, size: int = 1 << 23) -> None:
        self.partial = torch.empty(size, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(1 << 14, dtype=torch.int32, device=device)  # every product leaves zeros


def linear(
    x: Tensor,
    weight: Tensor,
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
    tile: Tile | None = None,
) -> Tensor:
    """out [T, N] = x [T, K] times `weight` [N, K] transposed; x is first normed by `norm` if that is given, for which
    `norms_within` must hold. Then `terms`, and a bias or a residual [T, N], are added. `gated`: the weight is [2 N, K],
    and the result is silu of the first half times the second. The result of a row depends neither on T nor on
    `tile`."""
    num_rows, (rows, columns) = len(x), weight.shape
    if norm is not None and not norms_within(num_rows, weight):
        raise ValueError(f"a product of {num_rows} rows with a weight {tuple(weight.shape)} does not norm its input")
    size = rows // 2 if gated else rows
    sums = num_parts(weight)
    edges = (rows, rows) if terms is None else terms.edges
    added = (None,) * 5 + (0,) if terms is None else (terms.b, terms.low, *terms.rows, terms.low.shape[2])
    shape = {"N": size, "K": columns, "GATED": gated, "CHAINED": chained, "launch_pdl": chained, **EXACT}
    shape |= {"SECOND": edges[0], "THIRD": edges[1]}
    launch: Any
    if sums > 1 and num_rows <= MOST_HELD and tile is None:
        height = _FEW if num_rows <= _FEW else MOST_HELD
        programs = triton.cdiv(rows, 16)
        if _is_held(num_rows, weight):
            launch = _held[(programs,)]
            launch(
                x, weight, norm, bias, residual, out, *added, eps, num_rows,
                ROWS=1 if num_rows == 1 else height, BLOCK_M=height, BLOCK_N=16, num_warps=4, **shape,
            )  # fmt: skip
        else:
            launch = _streamed[(programs,)]
            width, stages = (64, 8) if num_rows <= _FEW else (128, 4)
            launch(
                x, weight, bias, residual, out, *added, num_rows,
                BLOCK_M=height, BLOCK_N=16, BLOCK_K=width, PREFETCH=512 if chained and num_rows <= _FEW else 0,
                num_warps=4, num_stages=stages, **shape,
            )  # fmt: skip
        return out
    if num_rows > MOST_SPREAD and terms is None and tile is None and prompt_linear.fits(x, weight, out):
        return prompt_linear.linear(x, weight, out, sums, bias=bias, residual=residual, gated=gated)
    best = tile or choose_tile(num_rows, weight)
    spread = sums > 1 and num_rows <= MOST_SPREAD
    num_tiles = triton.cdiv(num_rows, best.block_m) * triton.cdiv(rows, best.block_n)
    launch = _tiled[(num_tiles, sums if spread else 1)]
    launch(
        x, weight, bias, residual, out, workspace.partial, workspace.arrived, *added, num_rows,
        SUMS=sums, SPREAD=spread, BLOCK_M=best.block_m, BLOCK_N=best.block_n,
        BLOCK_K=min(best.block_k, max(_LEAST_K, triton.next_power_of_2(columns // sums))),
        GROUP_M=8 if num_rows > 128 else 1,
        PREFETCH=prefetched(columns // sums) if chained and weight.element_size() == 2 else 0,
        num_warps=best.warps, num_stages=best.stages, **shape,
    )  # fmt: skip
    return out


def prefetched(columns: int) -> int:
    """Return how many columns of its rows a program prefetches while the kernel before is still running."""
    most = 1024
    while columns % most:
        most //= 2
    return most if most >= 64 else 0
