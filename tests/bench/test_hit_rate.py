from pathlib import Path

import pytest

from bench.hit_rate import (
    InfiniteCache,
    PoolReplay,
    PoolReplayer,
    build_prompt,
    compute_share,
    hit_rate_records,
    replay_infinite,
    replay_pools,
)
from simulation.traces import MooncakeRequest, read_trace


def request(*hash_ids: int, input_length: int | None = None) -> MooncakeRequest:
    return MooncakeRequest(0, input_length or 512 * len(hash_ids), 1, hash_ids)


SHARED = [request(1, 2, 3), request(1, 2, 4, input_length=1100), request(1, 2, 3), request(9, input_length=10)]
"""Ten blocks in all, five of them distinct."""


def test_an_infinite_cache_finds_every_block_it_has_seen() -> None:
    assert replay_infinite(SHARED) == InfiniteCache(num_blocks=10, num_hits=5, num_distinct=5)


def test_prefix_ends_at_the_first_new_block() -> None:
    assert replay_infinite([request(1, 2), request(3, 2)]).num_hits == 0


def test_large_pool_misses_only_new_blocks_and_the_last_block_of_a_prompt() -> None:
    [replay] = replay_pools(SHARED, [100])
    misses = {"cold": 2, "evicted": 0, "uncacheable": 4, "refused": 0}
    assert replay == PoolReplay(100, num_hits=4, misses=misses, num_evictions=0, num_refused=0)
    assert replay.hit_rate == 0.4
    assert compute_share(replay, replay_infinite(SHARED)) == 0.8


def test_small_pool_refuses_a_request_and_continues() -> None:
    [replay] = replay_pools(SHARED, [2])
    misses = {"cold": 0, "evicted": 0, "uncacheable": 1, "refused": 9}
    assert replay == PoolReplay(2, num_hits=0, misses=misses, num_evictions=0, num_refused=3)


def test_pool_of_one_prompt_evicts_it_for_the_next() -> None:
    requests = [request(1, 2, 3), request(5, 6, 7), request(1, 2, 3)]
    [replay] = replay_pools(requests, [3])
    misses = {"cold": 4, "evicted": 2, "uncacheable": 3, "refused": 0}
    assert replay == PoolReplay(3, num_hits=0, misses=misses, num_evictions=6, num_refused=0)
    assert replay_infinite(requests).num_hits == 3


def test_pools_replayed_together_are_independent() -> None:
    sizes = [2, 3, 4, 100]
    assert replay_pools(SHARED, sizes) == [replay for size in sizes for replay in replay_pools(SHARED, [size])]


@pytest.mark.parametrize("pool_size", [2, 3, 4, 100])
def test_pool_is_consistent_and_free_after_a_replay(pool_size: int) -> None:
    replayer = PoolReplayer(pool_size)
    for each in SHARED:
        replayer.serve(build_prompt(each))
    replayer.pool.check()
    assert (replayer.pool.num_used, replayer.pool.tables) == (0, {})
    assert replayer.result().num_hits + sum(replayer.result().misses.values()) == 10


def test_records_contain_the_limit_and_each_pool() -> None:
    infinite, replays = replay_infinite(SHARED), replay_pools(SHARED, [2, 100])
    found = {(r.case, r.system, r.metric): r.value for r in hit_rate_records(infinite, replays)}
    assert found["infinite cache", "limit", "hit rate"] == 50
    assert found["infinite cache", "limit", "distinct"] == 5
    assert found["pool of 100 blocks", "octet", "of infinite"] == 80
    assert found["pool of 2 blocks", "octet", "refused"] == 3
    assert found["pool of 2 blocks", "octet", "miss: refused"] == 9


def test_trace_without_shared_blocks_has_the_full_share_of_the_limit() -> None:
    requests = [request(1), request(2)]
    [replay] = replay_pools(requests, [10])
    assert compute_share(replay, replay_infinite(requests)) == 1.0


def test_pool_of_the_working_set_is_nearly_as_good_as_an_infinite_cache(shared_data: Path) -> None:
    requests = read_trace(shared_data / "mooncake" / "conversation_trace.jsonl")
    infinite = replay_infinite(requests)
    replayer = PoolReplayer(infinite.num_distinct)
    for each in requests:
        replayer.serve(build_prompt(each))
    replayer.pool.check()
    assert round(100 * infinite.hit_rate, 1) == 36.6
    assert compute_share(replayer.result(), infinite) >= 0.97
