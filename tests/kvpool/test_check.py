"""`check()` names every invariant that a test breaks by hand."""

from collections.abc import Callable

import pytest

from kvpool import GARBAGE, Block, BlockKey, BlockPool, BlockTable, InvariantViolation, TokenChain

BLOCK_SIZE = 2
ROOT = b"root"


def admit(pool: BlockPool, tokens: list[int]) -> BlockTable:
    chain = TokenChain(ROOT, BLOCK_SIZE, tokens)
    table = pool.apply(pool.admit(chain, len(tokens)))
    pool.register(table, chain, len(tokens))
    return table


@pytest.fixture
def pool() -> BlockPool:
    """Return a pool with two tables that share their first block, two cached blocks that no table uses, and empty
    blocks."""
    pool = BlockPool(10, BLOCK_SIZE)
    pool.release(admit(pool, [7, 7, 8, 8]))
    admit(pool, [1, 1, 2, 2, 3])
    admit(pool, [1, 1, 4, 4, 5])
    pool.check()
    return pool


def table_of(pool: BlockPool) -> BlockTable:
    return next(iter(pool.tables.values()))


def shared_block(pool: BlockPool) -> Block:
    return next(block for block in pool.blocks if block.ref_count == 2)


def free_blocks(pool: BlockPool) -> list[Block]:
    return list(pool.free)


def miscount_the_free_list(pool: BlockPool) -> None:
    pool.free._length += 1


def list_a_block_twice(pool: BlockPool) -> None:
    first, *_, last = free_blocks(pool)
    last.next = first


def break_a_back_link(pool: BlockPool) -> None:
    second = free_blocks(pool)[1]
    second.prev = second


def break_the_first_back_link(pool: BlockPool) -> None:
    first, second, *_ = free_blocks(pool)
    first.prev = second


def lose_the_end_of_the_free_list(pool: BlockPool) -> None:
    pool.free.ring.prev = free_blocks(pool)[0]


def free_a_block_in_use(pool: BlockPool) -> None:
    pool.free.push_front([shared_block(pool)])


def queue_an_empty_block_behind_cache_entries(pool: BlockPool) -> None:
    empty = free_blocks(pool)[0]
    pool.free.remove(empty)
    pool.free.push_back([empty])


def lose_a_free_block(pool: BlockPool) -> None:
    pool.free.remove(free_blocks(pool)[0])


def count_a_holder_too_many(pool: BlockPool) -> None:
    shared_block(pool).ref_count += 1


def count_a_holder_too_few(pool: BlockPool) -> None:
    shared_block(pool).ref_count -= 1


def forget_a_live_table(pool: BlockPool) -> None:
    del pool.tables[id(table_of(pool))]


def mark_a_live_table_released(pool: BlockPool) -> None:
    table_of(pool).released = True


def hold_a_block_twice(pool: BlockPool) -> None:
    table = table_of(pool)
    table.block_ids.append(table.block_ids[0])


def hold_the_garbage_bin(pool: BlockPool) -> None:
    table_of(pool).block_ids.append(GARBAGE)
    pool.blocks[GARBAGE].ref_count += 1


def free_the_garbage_bin(pool: BlockPool) -> None:
    pool.free.push_front([pool.blocks[GARBAGE]])


def cache_the_garbage_bin(pool: BlockPool) -> None:
    garbage = pool.blocks[GARBAGE]
    garbage.key = BlockKey(b"garbage")
    pool.index[garbage.key] = garbage


def find_a_block_under_a_foreign_key(pool: BlockPool) -> None:
    one, other, *_ = pool.index
    pool.index[one] = pool.index[other]


def find_an_empty_block(pool: BlockPool) -> None:
    pool.index[BlockKey(b"forgotten")] = free_blocks(pool)[0]


def lose_a_cached_block(pool: BlockPool) -> None:
    pool.index.popitem()


def share_a_key(pool: BlockPool) -> None:
    one, other, *_ = pool.index.values()
    del pool.index[BlockKey(other.key or b"")]
    other.key = one.key


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (miscount_the_free_list, r"free list holds 4 blocks but counts 5"),
        (list_a_block_twice, r"in the free list twice"),
        (break_a_back_link, r"not linked back"),
        (break_the_first_back_link, r"not linked back"),
        (lose_the_end_of_the_free_list, r"not linked back"),
        (free_a_block_in_use, r"in the free list but in use"),
        (queue_an_empty_block_behind_cache_entries, r"empty but behind cache entries"),
        (lose_a_free_block, r"3 free \+ 5 used != 9 blocks"),
        (count_a_holder_too_many, r"ref_count=3.* 2 tables hold"),
        (count_a_holder_too_few, r"ref_count=1.* 2 tables hold"),
        (forget_a_live_table, r"\d tables hold"),
        (mark_a_live_table_released, r"released table is still live"),
        (hold_a_block_twice, r"holds a block twice"),
        (hold_the_garbage_bin, r"reserved block 0"),
        (free_the_garbage_bin, r"reserved block 0"),
        (cache_the_garbage_bin, r"reserved block 0"),
        (find_a_block_under_a_foreign_key, r"indexed under the wrong key"),
        (find_an_empty_block, r"indexed under the wrong key"),
        (lose_a_cached_block, r"5 blocks have a key, but 4 are indexed"),
        (share_a_key, r"5 blocks have a key, but 4 are indexed"),
    ],
)
def test_a_broken_invariant_is_named(pool: BlockPool, corrupt: Callable[[BlockPool], None], message: str) -> None:
    corrupt(pool)
    with pytest.raises(InvariantViolation, match=message):
        pool.check()
