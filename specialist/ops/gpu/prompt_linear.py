"""Matrix products of prompts: for more rows than a decode step has.

A sum has the order that `linear.py` describes: a token has the same bits as in a decode step. The copy engine loads and
stores all tiles. Where sums have one part, a program stays on its multiprocessor and computes one tile after the other:
the next is loaded while one is stored. With more parts, that is slower than a program for each tile; on a Hopper GPU,
`hopper_linear.py` computes these.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from specialist.ops.gpu.hopper import for_hopper
from specialist.ops.gpu.launch import EXACT


@triton.jit
def _compute(
    x, w, bias, residual, out, tile, num_m,
    N: tl.constexpr, K: tl.constexpr, SUMS: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr, MODEL: tl.constexpr,
):  # fmt: skip
    """GATED: half of the columns of a tile are those of the gate, the others those of `up`. Tiles that are computed at
    the same time share rows of x and of w."""
    height: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    num_n: tl.constexpr = (N + height - 1) // height
    steps: tl.constexpr = (K // SUMS + BLOCK_K - 1) // BLOCK_K
    group = tile // (GROUP_M * num_n)
    size = min(num_m - group * GROUP_M, GROUP_M)
    m = (group * GROUP_M + tile % (GROUP_M * num_n) % size) * BLOCK_M
    n = (tile % (GROUP_M * num_n) // size) * height
    part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in tl.range(0, SUMS * steps, num_stages=STAGES):
        part_x = x.load([m, step * BLOCK_K])
        if GATED:
            part_w = tl.reshape(w.load([0, n, step * BLOCK_K]), (BLOCK_N, BLOCK_K))
        else:
            part_w = w.load([n, step * BLOCK_K])
        part = tl.dot(part_x, tl.trans(part_w), part)
        if SUMS > 1:
            if step % steps == steps - 1:
                total += part
                part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if SUMS == 1:
        total = part
    if bias is not None:
        each = tl.arange(0, BLOCK_N)
        columns = n + each % height
        at = columns + each // height * N
        total = total.to(MODEL).to(tl.float32) + tl.load(bias + at, mask=columns < N, other=0.0).to(tl.float32)[None]
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(total.to(MODEL), (BLOCK_M, 2, height)), (0, 2, 1)))
        wide = gate.to(tl.float32)
        silu = (wide / (1.0 + tl.exp(-wide))).to(MODEL)
        out.store([m, n], (silu.to(tl.float32) * up.to(tl.float32)).to(MODEL))
    else:
        if residual is not None:
            total = total.to(MODEL).to(tl.float32) + residual.load([m, n]).to(tl.float32)
        out.store([m, n], total.to(MODEL))


@triton.jit(do_not_specialize=["num_rows"])
def _tiles(
    x, w, bias, residual, out, num_rows,
    N: tl.constexpr, K: tl.constexpr, SUMS: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STAGES: tl.constexpr, MODEL: tl.constexpr,
    STAYS: tl.constexpr,
):  # fmt: skip
    """SUMS: the number of parts of a sum. STAYS: there are fewer programs than tiles."""
    height: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    num_m = tl.cdiv(num_rows, BLOCK_M)
    if STAYS:
        for tile in tl.range(tl.program_id(0), num_m * tl.cdiv(N, height), tl.num_programs(0), flatten=True):
            _compute(
                x, w, bias, residual, out, tile, num_m,
                N, K, SUMS, GATED, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, MODEL,
            )  # fmt: skip
    else:
        _compute(
            x, w, bias, residual, out, tl.program_id(0), num_m,
            N, K, SUMS, GATED, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, STAGES, MODEL,
        )  # fmt: skip


class Tile(NamedTuple):
    block_m: int
    block_n: int
    block_k: int
    group_m: int
    stages: int


def choose_tile(sums: int, *, adds: bool) -> Tile:
    """Return the tile for sums of this many parts. It affects only speed. Several parts need registers twice, and a
    residual that is added needs memory."""
    return Tile(128, 128, 64, 8, 4) if sums > 1 or adds else Tile(128, 256, 64, 8, 3)


_MODEL = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def fits(x: Tensor, weight: Tensor, out: Tensor) -> bool:
    """Whether the copy engine can load and store these: 16-bit elements, rows of a multiple of 16 bytes."""
    return all(each.dtype in _MODEL and each.shape[1] % 8 == 0 for each in (x, weight, out))


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    sums: int,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    tile: Tile | None = None,
) -> Tensor:
    """The same as `linear.linear`, if all of it `fits`. `sums`: the number of parts of a sum. A `tile`
    is for the kernel of this module, which then computes on any GPU."""
    hopper = for_hopper("hopper_linear", x.device) if sums > 1 and tile is None else None
    if hopper is not None:
        hopper.linear(x, weight, out, sums, bias=bias, residual=residual, gated=gated)
        return out
    num_rows, (rows, columns) = len(x), weight.shape
    size = rows // 2 if gated else rows
    best = tile or choose_tile(sums, adds=residual is not None)
    height = best.block_n // 2 if gated else best.block_n
    stacked = weight.view(2, size, columns) if gated else weight
    block_w = [2, height, best.block_k] if gated else [height, best.block_k]
    block_out = [best.block_m, height]
    num_tiles = triton.cdiv(num_rows, best.block_m) * triton.cdiv(size, height)
    stays = sums == 1
    launch: Any = _tiles[(min(num_tiles, _num_processors(x.device)) if stays else num_tiles,)]
    launch(
        TensorDescriptor.from_tensor(x, [best.block_m, best.block_k]),
        TensorDescriptor.from_tensor(stacked, block_w),
        bias,
        None if residual is None else TensorDescriptor.from_tensor(residual, block_out),
        TensorDescriptor.from_tensor(out, block_out),
        num_rows,
        N=size, K=columns, SUMS=sums, GATED=gated, BLOCK_M=best.block_m, BLOCK_N=best.block_n, BLOCK_K=best.block_k,
        GROUP_M=best.group_m, STAGES=best.stages, MODEL=_MODEL[out.dtype], STAYS=stays, num_warps=8, **EXACT,
    )  # fmt: skip
    return out


def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
