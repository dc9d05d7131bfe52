"""A GPU adds the low-rank terms of each row's own adapters; its bits do not depend on the adapters of other rows."""

from collections.abc import Sequence
from random import Random

import pytest
import torch
from torch import Tensor

from tests.native.device import DEVICE

pytest.importorskip("triton")

from specialist.ops.gpu import linear, low_rank, norm
from tests.ops.test_gpu_kernels import F32, ON_GPU, SHORT, error, random, same  # skips without a GPU or an interpreter

NUM_PAGES = 20
COUNTS = (1, 2, 8, 13, 16, 24, 50, 100, 128, 200, 300) if ON_GPU else (1, 3, 33, 130)
# Columns, and the rows of the matrices with that input. Programs of 64 rows may have rows of two matrices.
GROUPS = (
    [
        *[(1024, (2048, 1024, 1024)), (1024, (3072, 3072)), (3072, (1024,)), (896, (896, 128, 128)), (4096, (4096,))],
        *[(14336, (4096,)), (64, (96, 48, 48))],
    ]
    if ON_GPU
    else [(64, (96, 48, 48)), (1024, (32, 32)), (192, (48,))]
)
STACKS = (3, 0, 1, 1, 2, 5)  # pages of the stacks of adapters; rows of the second have none


def rows_of(stacks: Sequence[int]) -> low_rank.Rows:
    """Return the pages of rows with these stacks, of which each has its own pages in scattered memory."""
    ids = list(range(1, NUM_PAGES))
    Random(0).shuffle(ids)
    own = {stack: [ids.pop() for _ in range(size)] for stack, size in enumerate(STACKS)}
    order = sorted(set(stacks), reverse=len(stacks) % 2 == 0)
    firsts = {stack: sum(len(own[each]) for each in order[: order.index(stack)]) for stack in order}
    used = [page for stack in order for page in own[stack]]
    lists = [[len(used), *used, *[0] * (NUM_PAGES - len(used))]]
    lists += [[firsts[stack] for stack in stacks], [len(own[stack]) for stack in stacks]]
    return low_rank.Rows(*(torch.tensor(each, dtype=torch.int32, device=DEVICE) for each in lists))


@pytest.mark.parametrize("dtype", [SHORT, F32], ids=str)
@pytest.mark.parametrize(("columns", "heights"), GROUPS, ids=str)
def test_a_row_gets_its_own_terms_with_the_same_bits_in_any_batch(
    columns: int, heights: tuple[int, ...], dtype: torch.dtype
) -> None:
    height, count, gated = sum(heights), max(COUNTS), len(heights) == 2
    x, gains = random(count, columns, dtype=dtype), random(columns, dtype=dtype, seed=1)
    weight = random(height, columns, dtype=dtype, scale=columns**-0.5)
    a = random(NUM_PAGES, len(heights), 16, columns, dtype=dtype, scale=columns**-0.5)
    b = random(NUM_PAGES, height, 16, dtype=dtype, seed=2, scale=0.5)
    a[0] = b[0] = torch.nan  # the page of no adapter
    inner = [sum(heights[: index + 1]) for index in range(len(heights) - 1)]
    edges = (*inner, height, height)[0], (*inner, height, height)[1]
    stacks = [Random(3).choices(range(len(STACKS)), k=count)[i] for i in range(count)]

    def product(picked: Sequence[int], *, normed: bool = False) -> Tensor:
        rows, its = rows_of([stacks[row] for row in picked]), x[list(picked)]
        low = torch.full((len(picked), len(heights), 16 * max(STACKS)), torch.nan, dtype=dtype, device=DEVICE)
        out = torch.full((len(picked), heights[0] if gated else height), torch.nan, dtype=dtype, device=DEVICE)
        if normed:  # the terms' kernel norms its input
            passed_on = torch.full_like(its, torch.nan)
            low_rank.shrink(its, a, rows, low, norm=gains, normed=passed_on, eps=1e-5)
            its = passed_on
        else:
            low_rank.shrink(its, a, rows, low, most_pages=3)
        workspace = linear.Workspace(DEVICE)
        terms = low_rank.Terms(b, low, rows, edges)
        linear.linear(its, weight, workspace, out, terms=terms, gated=gated)
        assert not workspace.arrived.any()
        return out

    def expected(given: Tensor) -> Tensor:
        whole = given.double() @ weight.double().T + low_rank.reference_terms(given, a, b, rows_of(stacks), edges)
        gate, up = whole.chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up if gated else whole

    most = 1e-5 if dtype == F32 else 1e-2
    whole = product(range(count))
    assert error(whole, expected(x)) < most
    for size in COUNTS:
        assert same(product(range(size)), whole[:size]), f"{size} rows have other bits"
    for row in range(12 if ON_GPU else 4):
        assert same(product([row]), whole[row : row + 1]), f"row {row} has other bits alone"
    bare = [row for row in range(count) if STACKS[stacks[row]] == 0]
    plain = torch.full_like(whole, torch.nan)
    linear.linear(x, weight, linear.Workspace(DEVICE), plain, gated=gated)
    assert bare and same(whole[bare], plain[bare]), "a row without adapters has other bits than in a plain product"
    some = range(min(count, 128))
    together = norm.rms_norm(x, gains, 1e-5, torch.full_like(x, torch.nan))
    x = together
    plain = product(some)
    x = random(count, columns, dtype=dtype)
    assert same(product(some, normed=True), plain), "a norm within has other bits"
