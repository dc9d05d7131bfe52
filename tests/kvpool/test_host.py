"""Evicted blocks whose content stays on the host: what is refused, what `check()` names, and planted bugs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvpool import GARBAGE, BlockCopy, BlockKey, BlockPool, BlockTable, HostCache, InvariantViolation, TokenChain
from tests.kvpool.test_pool_laws import PoolLaws
from tests.laws.mutants import HOST, POOL, Mutant

ROOT = b"root"


class Copies:
    """Records the copies."""

    def __init__(self) -> None:
        self.spilled: list[BlockCopy] = []
        self.restored: list[BlockCopy] = []

    def spill(self, copies: Sequence[BlockCopy]) -> None:
        self.spilled += copies

    def restore(self, copies: Sequence[BlockCopy]) -> None:
        self.restored += copies


def compute(pool: BlockPool, tokens: list[int]) -> BlockTable:
    chain = TokenChain(ROOT, 2, tokens)
    table = pool.apply(pool.admit(chain, len(tokens)))
    assert pool.host is not None
    pool.host.copy_pending()
    pool.register(table, chain, len(tokens))
    return table


def spilled(capacity: int = 4) -> tuple[BlockPool, HostCache, Copies]:
    """Return a pool of three blocks that had the text 1, 1, 2, 2, 3 and then another, so that the first is spilled."""
    copies = Copies()
    host = HostCache(capacity, copies)
    pool = BlockPool(4, 2, host=host)
    pool.release(compute(pool, [1, 1, 2, 2, 3]))
    pool.release(compute(pool, [7, 7, 8, 8, 9, 9]))
    pool.check()
    return pool, host, copies


def test_a_spilled_prefix_comes_back_but_for_the_last_token() -> None:
    pool, host, copies = spilled()
    assert (len(copies.spilled), host.num_spilled) == (2, 2)
    assert pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2]), 4).num_hit_tokens == 2
    plan = pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5)
    assert (len(plan.hit), len(plan.restored), plan.num_fresh, plan.misses) == (0, 2, 1, {})
    table = pool.apply(plan)
    assert (table.num_registered, pool.counters.hits) == (2, 2)
    assert copies.restored == []
    host.copy_pending()
    of = {copy.place: copy.block_id for copy in copies.restored}
    assert [of[found.place] for found in plan.restored] == list(table.block_ids[:2])
    assert (host.num_restored, len(host.blocks)) == (2, 4)
    pool.check()


def test_evicting_a_restored_block_again_copies_nothing() -> None:
    pool, host, copies = spilled()
    pool.release(pool.apply(pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5)))
    host.copy_pending()
    before = len(copies.spilled)
    pool.apply(pool.admit(TokenChain(ROOT, 2, [9] * 6), 6))
    host.copy_pending()
    assert len(copies.spilled) == before
    pool.check()


def test_a_key_that_matches_other_tokens_on_the_host_is_a_miss() -> None:
    """The collision is forged, because no two token sequences with the same sha256 are known."""
    pool, host, _ = spilled()
    chain = TokenChain(ROOT, 2, [1, 1, 2, 2, 5])
    key = chain.keys(2)[1]
    host.blocks[key] = replace(host.blocks[key], tokens=b"of another")
    plan = pool.admit(chain, 5)
    assert (plan.num_hit_tokens, plan.misses) == (2, {"tokens_differ": 1})


def test_what_the_host_dropped_counts_as_evicted() -> None:
    pool, host, _ = spilled(capacity=1)
    assert host.num_dropped == 1
    assert pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5).misses == {"evicted": 1}


def test_a_plan_counts_the_blocks_that_it_restores() -> None:
    pool, _, _ = spilled()
    kept = compute(pool, [5, 5, 5])
    plan = pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5)
    assert (plan.num_hit, plan.shortage) == (2, 2)
    pool.release(kept)
    assert pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5).shortage == 0


def test_a_restored_block_that_is_evicted_before_its_copy_gets_none() -> None:
    pool, host, copies = spilled()
    pool.release(pool.apply(pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5)))
    assert len(host.to_restore) == 2
    pool.apply(pool.admit(TokenChain(ROOT, 2, [9] * 6), 6))
    pool.check()
    assert host.to_restore == {}
    host.copy_pending()
    assert copies.restored == []
    assert pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5).num_hit_tokens == 4


def test_a_block_that_is_on_the_device_is_never_restored() -> None:
    """Two requests compute the same text at once. The blocks of the first one are cached, but for the last one of the
    second, which is longer; the blocks before that are evicted."""
    host = HostCache(8, Copies())
    pool = BlockPool(9, 2, host=host)
    short, long = (TokenChain(ROOT, 2, tokens) for tokens in ([1, 1, 2, 2], [1, 1, 2, 2, 3, 3]))
    tables = [pool.apply(pool.admit(chain, len(chain))) for chain in (short, long)]
    for table, chain in zip(tables, (short, long), strict=True):
        pool.register(table, chain, len(chain))
    pool.release(tables[0])
    pool.apply(pool.admit(TokenChain(ROOT, 2, [9] * 10), 10))
    assert list(host.blocks) == short.keys(2)[::-1]
    host.copy_pending()
    longer = TokenChain(ROOT, 2, [1, 1, 2, 2, 3, 3, 4])
    pool.release(tables[1])
    host.blocks[longer.keys(3)[2]] = replace(host.blocks[short.keys(2)[0]], key=longer.keys(3)[2])
    assert len(pool.admit(longer, 7).restored) == 2


def test_a_host_without_room_and_one_without_a_prefix_cache_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        HostCache(0, Copies())
    with pytest.raises(ValueError, match="without a prefix cache"):
        BlockPool(4, 2, prefix_cache=False, host=HostCache(1, Copies()))


def first_key(host: HostCache) -> BlockKey:
    return next(iter(host.blocks))


def use_a_place_twice(pool: BlockPool, host: HostCache) -> None:
    one, other = list(host.blocks)[:2]
    host.blocks[one] = replace(host.blocks[one], place=host.blocks[other].place)


def leave_the_memory(pool: BlockPool, host: HostCache) -> None:
    host.capacity = 1


def file_under_another_key(pool: BlockPool, host: HostCache) -> None:
    one, other = list(host.blocks)[:2]
    host.blocks[one], host.blocks[other] = host.blocks[other], host.blocks[one]


def lose_a_block(pool: BlockPool, host: HostCache) -> None:
    del host._droppable[first_key(host)]


def drop_what_is_to_be_restored(pool: BlockPool, host: HostCache) -> None:
    held = next(iter(host.to_restore.values()))
    host._droppable[held.key] = held


def restore_to_another_block(pool: BlockPool, host: HostCache) -> None:
    block_id = next(iter(host.to_restore))
    pool.index[host.to_restore[block_id].key].tokens = b"others"


def restore_to_a_block_without_the_key(pool: BlockPool, host: HostCache) -> None:
    one, other = host.to_restore
    host.to_restore[one], host.to_restore[other] = host.to_restore[other], host.to_restore[one]


def spill_to_no_place(pool: BlockPool, host: HostCache) -> None:
    host.to_spill[11] = next(iter(pool.free)).block_id


def spill_a_block_twice(pool: BlockPool, host: HostCache) -> None:
    host.to_spill |= {0: pool.blocks[3].block_id, 1: pool.blocks[3].block_id}


def spill_the_garbage(pool: BlockPool, host: HostCache) -> None:
    host.to_spill[0] = GARBAGE


def cache_before_it_was_spilled(pool: BlockPool, host: HostCache) -> None:
    source = pool.index[TokenChain(ROOT, 2, [7, 7]).keys(1)[0]]
    host.to_spill[0] = source.block_id


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (use_a_place_twice, "have the places"),
        (leave_the_memory, "have the places"),
        (file_under_another_key, "under another key"),
        (lose_a_block, "3 not"),
        (drop_what_is_to_be_restored, "may be dropped before"),
        (restore_to_another_block, "other tokens"),
        (restore_to_a_block_without_the_key, "which has another key"),
        (spill_to_no_place, "a place that holds no block"),
        (spill_a_block_twice, "one of them twice"),
        (spill_the_garbage, "block 0"),
        (cache_before_it_was_spilled, "before its old content was spilled"),
    ],
)
def test_check_names_what_is_wrong(break_it: Callable[[BlockPool, HostCache], None], message: str) -> None:
    pool, host, _ = spilled(capacity=12)
    pool.release(compute(pool, [5, 5, 5]))
    if "restore" in break_it.__name__:
        pool.apply(pool.admit(TokenChain(ROOT, 2, [1, 1, 2, 2, 5]), 5))
    pool.check()
    break_it(pool, host)
    with pytest.raises(InvariantViolation, match=message):
        pool.check()


PLANTED = (
    Mutant(
        "restored in another order", POOL, "_allocate_restored", "[-len(restored) :]", "[: -len(restored) - 1 : -1]"
    ),
    Mutant("a place is used again too early", HOST, "hold", "del self._droppable[each.key]", "pass"),
    Mutant("the newest goes first", HOST, "keep", "popitem(last=False)", "popitem()"),
    Mutant("what was restored goes last", HOST, "copy_pending", "move_to_end(found.key, last=False)", "values()"),
    Mutant("blocks to restore are not counted", POOL, "admit", "len(restored) + num_fresh +", "num_fresh +"),
)


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_planted_bug_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    once = settings(max_examples=100, stateful_step_count=50, phases=(Phase.generate,), database=None)
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(PoolLaws, settings=once)
