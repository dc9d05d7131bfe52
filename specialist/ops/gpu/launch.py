"""What all kernels share: overlap with the kernel before, and prefetching into the second-level cache."""

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

EXACT: dict[str, Any] = {"enable_fp_fusion": False}
"""A compiler may otherwise fuse a product and a sum in one kernel but not in another, which rounds differently."""
_LINE = tl.constexpr(64)  # 16-bit elements in a cache line


@triton.jit
def start(CHAINED: tl.constexpr):
    """Let the next kernel start its part before `wait`. Only a kernel launched with `launch_pdl` may do so."""
    if CHAINED:
        gdc_launch_dependents()


@triton.jit
def wait(CHAINED: tl.constexpr):
    """Wait until the kernel before has written everything. Earlier code may read weights only."""
    if CHAINED:
        gdc_wait()


@triton.jit
def prefetch(rows, COLUMNS: tl.constexpr):
    """Fetch the first COLUMNS 16-bit elements of each row, given by pointers [R], into the second-level cache."""
    count: tl.constexpr = (COLUMNS + _LINE - 1) // _LINE
    lines = rows[:, None] + (tl.arange(0, count) * _LINE)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [lines.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
