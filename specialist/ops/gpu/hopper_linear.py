"""Matrix products of prompts on Hopper GPUs, for sums of several parts; see `linear.py` for the order of a sum.

A program stays on its multiprocessor and computes one tile after the other, with warps of two kinds. One warp lets the
copy engine load x and w, some steps ahead, also for the next tile. Two teams of four warps multiply half of the rows of
a tile each. A team sums a part in its tensor cores' registers, then adds it to the total of the parts before. While
one team does so, or stores its result, the tensor cores serve the other.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from specialist.ops.gpu.launch import EXACT

SIDE = gl.constexpr(64)  # rows of x of a team: the fewest that tensor cores multiply at a time
TEAMS = gl.constexpr(2)
BLOCK_N = gl.constexpr(128)  # rows of w
BLOCK_K = gl.constexpr(64)
STAGES = gl.constexpr(6)  # steps in shared memory
GROUP_M = gl.constexpr(8)  # so many tiles that are computed at the same time share rows of w


@gluon.jit
def _place(tile, num_m, N: gl.constexpr, HEIGHT: gl.constexpr):
    """Return the first row and the first column of a tile's result."""
    num_n: gl.constexpr = (N + HEIGHT - 1) // HEIGHT
    group = tile // (GROUP_M * num_n)
    size = gl.minimum(num_m - group * GROUP_M, GROUP_M)
    m = group * GROUP_M + tile % (GROUP_M * num_n) % size
    return m * TEAMS * SIDE, tile % (GROUP_M * num_n) // size * HEIGHT


@gluon.jit
def _load(x, w, parts_x, parts_w, full, empty, num_tiles, num_m, N: gl.constexpr, K: gl.constexpr, GATED: gl.constexpr):
    """Load the factors of all tiles of this program."""
    HEIGHT: gl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        m, n = _place(tile, num_m, N, HEIGHT)
        for step in range(K // BLOCK_K):
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(bar, (TEAMS * SIDE + BLOCK_N) * BLOCK_K * 2)
            part_w = parts_w.index(stage)
            if GATED:
                tma.async_copy_global_to_shared(w, [n, step * BLOCK_K], bar, part_w.slice(0, HEIGHT))
                tma.async_copy_global_to_shared(w, [N + n, step * BLOCK_K], bar, part_w.slice(HEIGHT, HEIGHT))
            else:
                tma.async_copy_global_to_shared(w, [n, step * BLOCK_K], bar, part_w)
            for team in gl.static_range(TEAMS):
                part_x = parts_x.index(stage * TEAMS + team)
                tma.async_copy_global_to_shared(x, [m + team * SIDE, step * BLOCK_K], bar, part_x)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def _add_bias(value, bias, first, N: gl.constexpr, MODEL: gl.constexpr):
    columns = first + gl.arange(0, value.shape[1], gl.SliceLayout(0, value.type.layout))
    added = gl.load(bias + columns, mask=columns < N, other=0.0)
    return value.to(MODEL).to(gl.float32) + added.to(gl.float32)[None, :]


@gluon.jit
def _multiply(
    bias, residual, out, parts_x, parts_w, results, full, empty, arrived, num_tiles, num_m,
    TEAM: gl.constexpr, N: gl.constexpr, K: gl.constexpr, SUMS: gl.constexpr, GATED: gl.constexpr, MODEL: gl.constexpr,
):  # fmt: skip
    """Compute a team's rows of all tiles of this program. They are rounded to the model's type as the reference does
    after every operation. GATED: half of the columns of a tile are those of the gate, the others those of `up`."""
    HEIGHT: gl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    buffer, bar = results.index(TEAM), arrived.index(TEAM)
    stage = 0
    phase = 0
    before = 0
    turn = 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        m, n = _place(tile, num_m, N, HEIGHT)
        row = m + TEAM * SIDE
        if residual is not None:
            tma.store_wait(0)
            mbarrier.expect(bar, SIDE * HEIGHT * 2)
            tma.async_copy_global_to_shared(residual, [row, n], bar, buffer)
        total = gl.zeros((SIDE, BLOCK_N), gl.float32, layout)
        part = gl.zeros((SIDE, BLOCK_N), gl.float32, layout)
        for _ in range(SUMS):
            for step in range(K // SUMS // BLOCK_K):
                mbarrier.wait(full.index(stage), phase)
                part_x, part_w = parts_x.index(stage * TEAMS + TEAM), parts_w.index(stage).permute((1, 0))
                part = warpgroup_mma(part_x, part_w, part, use_acc=step > 0, is_async=True)
                part = warpgroup_mma_wait(1, deps=(part,))
                mbarrier.arrive(empty.index(before), pred=step > 0)
                before = stage
                stage += 1
                if stage == STAGES:
                    stage = 0
                    phase ^= 1
            part = warpgroup_mma_wait(0, deps=(part,))
            mbarrier.arrive(empty.index(before))
            total += part
        if GATED:
            gate, up = gl.split(gl.permute(gl.reshape(total, (SIDE, 2, HEIGHT)), (0, 2, 1)))
            if bias is not None:
                gate, up = _add_bias(gate, bias, n, N, MODEL), _add_bias(up, bias + N, n, N, MODEL)
            wide = gate.to(MODEL).to(gl.float32)
            silu = (wide / (1.0 + gl.exp(-wide))).to(MODEL)
            result = silu.to(gl.float32) * up.to(MODEL).to(gl.float32)
        else:
            result = total
            if bias is not None:
                result = _add_bias(result, bias, n, N, MODEL)
        if residual is not None:
            mbarrier.wait(bar, turn)
            result = result.to(MODEL).to(gl.float32) + buffer.load(result.type.layout).to(gl.float32)
        else:
            tma.store_wait(0)
        buffer.store(result.to(MODEL))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [row, n], buffer)
        turn ^= 1
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["num_rows"])
def _tiles(
    x, w, bias, residual, out, num_rows,
    N: gl.constexpr, K: gl.constexpr, SUMS: gl.constexpr, GATED: gl.constexpr, MODEL: gl.constexpr,
):  # fmt: skip
    """SUMS: the number of parts of a sum."""
    HEIGHT: gl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    num_m = gl.cdiv(num_rows, TEAMS * SIDE)
    num_tiles = num_m * ((N + HEIGHT - 1) // HEIGHT)
    parts_x = gl.allocate_shared_memory(MODEL, [STAGES * TEAMS, SIDE, BLOCK_K], x.layout)
    parts_w = gl.allocate_shared_memory(MODEL, [STAGES, BLOCK_N, BLOCK_K], w.layout)
    results = gl.allocate_shared_memory(MODEL, [TEAMS, SIDE, HEIGHT], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    arrived = gl.allocate_shared_memory(gl.int64, [TEAMS, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=TEAMS)
    for team in gl.static_range(TEAMS):
        mbarrier.init(arrived.index(team), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (bias, residual, out, parts_x, parts_w, results, full, empty, arrived, num_tiles, num_m,
                         0, N, K, SUMS, GATED, MODEL)),
            (_multiply, (bias, residual, out, parts_x, parts_w, results, full, empty, arrived, num_tiles, num_m,
                         1, N, K, SUMS, GATED, MODEL)),
            (_load, (x, w, parts_x, parts_w, full, empty, num_tiles, num_m, N, K, GATED)),
        ],
        worker_num_warps=[4, 1], worker_num_regs=[232, 24],
    )  # fmt: skip


_MODEL = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    sums: int,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """The same as `prompt_linear.linear`, if sums have several parts. `residual` may be `out`."""
    num_rows, (rows, columns) = len(x), weight.shape
    size = rows // 2 if gated else rows
    height = BLOCK_N.value // 2 if gated else BLOCK_N.value
    if columns % (sums * BLOCK_K.value):
        raise ValueError(f"{sums} parts of a sum over {columns} columns do not have whole steps of {BLOCK_K.value}")
    model = _MODEL[out.dtype]
    block_x, block_w, block_out = [SIDE.value, BLOCK_K.value], [height, BLOCK_K.value], [SIDE.value, height]
    layout = gl.NVMMASharedLayout.get_default_for(block_x, model)
    layout_out = gl.NVMMASharedLayout.get_default_for(block_out, model)
    num_tiles = triton.cdiv(num_rows, TEAMS.value * SIDE.value) * triton.cdiv(size, height)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    launch: Any = _tiles[(min(num_tiles, processors),)]
    launch(
        TensorDescriptor.from_tensor(x, block_x, layout),
        TensorDescriptor.from_tensor(weight, block_w, layout),
        bias,
        None if residual is None else TensorDescriptor.from_tensor(residual, block_out, layout_out),
        TensorDescriptor.from_tensor(out, block_out, layout_out),
        num_rows,
        N=size, K=columns, SUMS=sums, GATED=gated, MODEL=model, num_warps=4, **EXACT,
    )  # fmt: skip
    return out


def try_out(device: torch.device) -> None:
    """Compute a small product. Raises an error if the kernel cannot be compiled, or computes something else."""
    x = torch.arange(200 * 1024).remainder(7).sub(3).view(200, 1024).to(torch.bfloat16)
    weight = torch.arange(128 * 1024).remainder(5).sub(2).view(128, 1024).to(torch.bfloat16)
    expected = (x.float() @ weight.float().T).to(torch.bfloat16)
    found = linear(x.to(device), weight.to(device), torch.empty(200, 128, dtype=x.dtype, device=device), 4)
    if not torch.equal(found.cpu(), expected):
        raise ArithmeticError("a product of small integers is not exact")
