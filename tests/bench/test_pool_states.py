"""Each timed operation on a pool state does exactly what the name of its figure says."""

import pytest

from bench.kv import TABLE_BLOCKS, EmptyPool, FullPool, SharedPrefix, bare_hash, lookup, new_tokens
from kvpool import AdmissionPlan, TokenChain


def test_an_empty_pool_never_evicts() -> None:
    state = EmptyPool(1_000)
    state.ready()()
    state.pool.check()
    assert state.pool.counters.evictions == 0
    assert state.pool.num_used == 0


def test_a_full_pool_evicts_for_every_block() -> None:
    state = FullPool(1_000)
    for _ in range(2):
        work = state.ready()
        before = state.pool.counters.evictions
        assert len(state.pool.index) == 1_000
        work()
        assert state.pool.counters.evictions == before + TABLE_BLOCKS
    state.pool.check()


def test_a_shared_prefix_is_shared_in_full() -> None:
    state = SharedPrefix(1_000)
    for _ in range(2):
        state.ready_to_share()()
        assert list(state.sharer.block_ids) == list(state.holder.block_ids)[:TABLE_BLOCKS]
        state.ready_to_leave()()
        assert state.sharer.released
    state.pool.check()


@pytest.mark.parametrize(("cached", "num_hit"), [(True, 62), (False, 0)])
def test_lookup_hits_all_blocks_or_none(cached: bool, num_hit: int) -> None:
    plan = lookup(1_000, 16, cached=cached)()()
    assert isinstance(plan, AdmissionPlan)
    assert len(plan.hit) == num_hit
    assert plan.misses == ({} if cached else {"cold": 62})


def test_limit_hashes_the_same_blocks_as_a_lookup() -> None:
    chain = TokenChain(bytes(32), 16, new_tokens(0, 1_000))
    assert bare_hash(1_000, 16)()() == chain.keys(62)[61]
