"""What the pool refuses, and what its counters count."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpool import BlockPool, BlockTable, InvariantViolation, PoolExhausted, TokenChain
from tests.kvpool.snapshot import snapshot

ROOT = b"root"


def admit(pool: BlockPool, chain: TokenChain) -> BlockTable:
    table = pool.apply(pool.admit(chain, len(chain)))
    pool.register(table, chain, len(chain))
    return table


@pytest.mark.parametrize("num_blocks", [-1, 0, 1])
def test_a_pool_has_a_block_beside_the_garbage_bin(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="num_blocks must be at least 2"):
        BlockPool(num_blocks, 16)


@pytest.mark.parametrize("block_size", [-1, 0])
def test_a_block_holds_a_token(block_size: int) -> None:
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        BlockPool(2, block_size)


def test_the_smallest_pool_hands_out_its_only_block() -> None:
    pool = BlockPool(2, 1)
    assert list(admit(pool, TokenChain(ROOT, 1, [5])).block_ids) == [1]
    assert (pool.capacity, pool.num_free, pool.num_used) == (1, 0, 1)


def test_a_key_that_matches_other_tokens_is_a_miss() -> None:
    """The collision is forged, because no two token sequences with the same sha256 are known."""
    pool = BlockPool(8, 2)
    chain = TokenChain(ROOT, 2, [1, 2, 3, 4, 5])
    table = admit(pool, chain)
    pool.blocks[table.block_ids[1]].tokens = b"of another"
    plan = pool.admit(chain, len(chain))
    assert (plan.num_hit_tokens, plan.misses) == (2, {"tokens_differ": 1})
    pool.apply(plan)
    assert pool.counters.misses["tokens_differ"] == 1


def test_growing_beyond_the_pool_changes_nothing() -> None:
    pool = BlockPool(4, 2)
    table = admit(pool, TokenChain(ROOT, 2, [1, 2]))
    before = snapshot(pool)
    with pytest.raises(PoolExhausted, match="3 blocks needed, 2 free"):
        pool.grow(table, 8)
    assert snapshot(pool) == before
    pool.grow(table, 6)


def test_a_plan_cannot_be_changed() -> None:
    plan = BlockPool(2, 1).admit(TokenChain(ROOT, 1, [1, 2]), 2)
    with pytest.raises(FrozenInstanceError):
        plan.shortage = 0  # type: ignore[misc]


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int]:
    start = draw(st.integers(0, 20))
    return start, draw(st.integers(start + 1, 24))


@given(st.integers(1, 5), st.lists(spans(), max_size=4))
def test_a_step_reads_up_to_its_last_position_and_writes_from_its_first(
    block_size: int, steps: list[tuple[int, int]]
) -> None:
    pool = BlockPool(2, block_size)
    pool.count_traffic(steps)
    assert pool.counters.reads == sum(len({p // block_size for p in range(stop)}) for _, stop in steps)
    assert pool.counters.writes == sum(len({p // block_size for p in range(*step)}) for step in steps)


@pytest.mark.parametrize("position", [0, 4, 5])
def test_a_step_that_computes_nothing_moves_no_blocks(position: int) -> None:
    pool = BlockPool(2, 4)
    pool.count_traffic([(position, position)])
    assert (pool.counters.reads, pool.counters.writes) == (0, 0)


@given(positions=st.lists(st.integers(0, 40), max_size=5), block_size=st.integers(1, 5))
def test_a_token_in_each_table_counts_as_a_step_of_one_token(positions: list[int], block_size: int) -> None:
    one, other = BlockPool(2, block_size), BlockPool(2, block_size)
    one.count_tokens(positions)
    other.count_traffic([(position, position + 1) for position in positions])
    assert one.counters == other.counters


def test_a_block_held_back_by_a_boundary_and_one_never_seen_are_missed_for_their_own_reasons() -> None:
    pool = BlockPool(8, 2)
    admit(pool, TokenChain(ROOT, 2, [1, 2, 3, 4, 5]))
    longer = TokenChain(ROOT, 2, [1, 2, 3, 4, 5, 6, 7])
    plan = pool.admit(longer, len(longer), resumable=lambda key: False)
    assert plan.misses == {"no_boundary": 2, "cold": 1}


def test_a_chain_of_another_block_size_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks have 3 tokens in the chain, but 2 in the pool"):
        BlockPool(8, 2).admit(TokenChain(ROOT, 3, [1]), 1)


def test_a_registration_that_fails_changes_nothing() -> None:
    """One registration has too few tokens, the next too few slots. Afterwards the blocks can still be registered."""
    pool = BlockPool(8, 2)
    chain = TokenChain(ROOT, 2, [1, 2, 3])
    table = pool.apply(pool.admit(chain, 4))
    with pytest.raises(ValueError, match="do not fill"):
        pool.register(table, chain, 4)
    chain.extend([4])
    with pytest.raises(ValueError, match="table of 4 slots"):
        pool.register(table, chain, 6)
    assert (table.num_registered, pool.index) == (0, {})
    pool.register(table, chain, 4)
    assert len(pool.index) == 2


def test_a_released_table_cannot_be_used() -> None:
    pool = BlockPool(8, 2)
    chain = TokenChain(ROOT, 2, [1, 2, 3])
    table = pool.apply(pool.admit(chain, 4))
    pool.release(table)
    for misuse in (
        lambda: pool.grow(table, 6),
        lambda: pool.register(table, chain, 2),
        lambda: pool.frees_a_block(table),
    ):
        with pytest.raises(InvariantViolation, match="has been released"):
            misuse()
    pool.check()
