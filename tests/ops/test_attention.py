"""Paged attention equals its definition for any block table and any content of other slots."""

from dataclasses import dataclass
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from specialist.ops.reference.layers import attend, spread, views, write_kv
from tests.native.device import DEVICE
from tests.ops.naive_attention import naive_attention


@dataclass
class PagedRows:
    """Rows of cached and new tokens, scattered over blocks. All other slots hold NaN."""

    rows: list[tuple[int, int]]
    block_size: int
    kv_heads: int
    group: int
    head_dim: int
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        contexts = [cached + new for cached, new in self.rows]
        counts = [-(-context // self.block_size) for context in contexts]
        ids = list(range(1, sum(counts) + 2))
        Random(self.seed).shuffle(ids)
        cache = torch.full((len(ids) + 1, self.block_size, self.kv_heads, self.head_dim), torch.nan, dtype=self.dtype)
        self.k_cache, self.v_cache = cache.to(DEVICE), cache.clone().to(DEVICE)
        self.tables = torch.zeros(len(self.rows), max(counts), dtype=torch.int32)
        self.contexts = torch.tensor(contexts, dtype=torch.int32)
        self.query_start = torch.tensor([0, *(new for _, new in self.rows)]).cumsum(0).int()
        self.q = torch.randn(int(self.query_start[-1]), self.kv_heads * self.group, self.head_dim).to(self.dtype)
        self.kv: list[tuple[Tensor, Tensor]] = []
        for row, (context, count) in enumerate(zip(contexts, counts, strict=True)):
            mine = [ids.pop() for _ in range(count)]
            self.tables[row, :count] = torch.tensor(mine)
            k, v = torch.randn(2, context, self.kv_heads, self.head_dim).to(self.dtype)
            slots = [mine[i // self.block_size] * self.block_size + i % self.block_size for i in range(context)]
            write_kv(k.to(DEVICE), v.to(DEVICE), self.k_cache, self.v_cache, torch.tensor(slots, device=DEVICE))
            self.kv.append((k, v))

    def attend(self, window: int | None) -> Tensor:
        q = self.q.to(DEVICE)
        seen = views(self.query_start, self.contexts, self.tables, self.k_cache.shape[1], window, q.device)
        return attend(q, self.k_cache, self.v_cache, seen).cpu()

    def naive(self, window: int | None) -> Tensor:
        parts = torch.split(self.q, [new for _, new in self.rows])
        return torch.cat([naive_attention(q, k, v, window) for q, (k, v) in zip(parts, self.kv, strict=True)])


ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    rows=ROWS,
    block_size=st.integers(1, 5),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    window=st.one_of(st.none(), st.integers(1, 20)),
    seed=st.integers(0, 99),
)
def test_equals_its_definition(
    rows: list[tuple[int, int]], block_size: int, kv_heads: int, group: int, window: int | None, seed: int
) -> None:
    paged = PagedRows(rows, block_size, kv_heads, group, head_dim=4, seed=seed)
    torch.testing.assert_close(paged.attend(window).double(), paged.naive(window), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "rows",
    [[(70, 1), (3, 1), (0, 1), (41, 1)], [(30, 5)] * 3, [(0, 90), (17, 50)], [(9, 1), (0, 40), (5, 1)]],
    ids=["decode", "verify", "prefill", "all at once"],
)
@pytest.mark.parametrize("window", [None, 16])
def test_every_mode_in_float32_and_bfloat16(rows: list[tuple[int, int]], window: int | None) -> None:
    exact = PagedRows(rows, 16, 3, 3, head_dim=64)
    torch.testing.assert_close(exact.attend(window).double(), exact.naive(window), atol=1e-5, rtol=1e-5)
    coarse = PagedRows(rows, 16, 3, 3, head_dim=64, dtype=torch.bfloat16)
    torch.testing.assert_close(coarse.attend(window).double(), coarse.naive(window), atol=2e-2, rtol=2e-2)


def test_a_row_does_not_see_a_neighbour_that_is_not_finite() -> None:
    paged = PagedRows([(6, 1), (3, 1), (9, 1)], 4, 1, 2, head_dim=8)
    before = paged.attend(None)
    first = int(paged.tables[1, 0])
    paged.k_cache[first] = torch.inf
    paged.v_cache[first] = torch.nan
    after = paged.attend(None)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not after[1].isfinite().any()


def test_writes_go_to_their_slots_and_nowhere_else() -> None:
    k_cache, v_cache = torch.zeros(2, 3, 4, 1, 2, device=DEVICE).unbind()
    k, v = torch.randn(2, 3, 1, 2, device=DEVICE).unbind()
    slots = torch.tensor([11, 0, 6], device=DEVICE)
    write_kv(k, v, k_cache, v_cache, slots)
    for cache, written in ((k_cache, k), (v_cache, v)):
        assert torch.equal(cache.view(12, 1, 2)[slots], written)
        assert int(cache.count_nonzero()) == written.numel()


def test_heads_with_keys_of_their_own_see_what_they_see_when_they_share() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    shared = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    own = functional.scaled_dot_product_attention(q, spread(k, q), spread(v, q))
    torch.testing.assert_close(own, shared)
