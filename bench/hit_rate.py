"""How much of a trace's prompts a prefix cache finds, by the size of the pool."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from bench.record import Record
from bench.trace import TRACE_BLOCK_SIZE, TraceRequest
from kvpool import BlockPool, TokenChain

BENCH = "kv trace"
POOL_SIZES = tuple(1_000 * 2**i for i in range(9))


@dataclass(frozen=True, slots=True)
class InfiniteCache:
    """What a cache that forgets nothing would have found."""

    num_blocks: int
    """All blocks of all prompts: what every hit rate here is a share of."""
    num_hits: int
    num_distinct: int
    """The working set: a pool of this many blocks never has to evict."""

    @property
    def hit_rate(self) -> float:
        return self.num_hits / self.num_blocks


@dataclass(frozen=True, slots=True)
class PoolReplay:
    """What a pool of `pool_size` blocks did find. Hits and misses add up to the trace's blocks."""

    pool_size: int
    num_hits: int
    misses: Mapping[str, int]
    """Blocks by reason: the pool's own reasons; "uncacheable" for the one block of a prompt with its last token,
    which must be computed; "refused" for those of prompts that are larger than the pool."""
    num_evictions: int
    num_refused: int
    """Prompts that are larger than the pool."""

    @property
    def hit_rate(self) -> float:
        return self.num_hits / (self.num_hits + sum(self.misses.values()))


class PoolReplayer:
    """Serves one prompt after the other from a real pool, as a replica would that runs one request at a time."""

    def __init__(self, pool_size: int) -> None:
        self.pool = BlockPool(pool_size + 1, TRACE_BLOCK_SIZE)
        self._num_served = 0
        self._num_refused = 0
        self._num_blocks_refused = 0

    def serve(self, prompt: TokenChain) -> None:
        plan = self.pool.admit(prompt, len(prompt))
        if plan.shortage:
            self._num_refused += 1
            self._num_blocks_refused += self.pool.blocks_for(len(prompt))
            return
        self._num_served += 1
        table = self.pool.apply(plan)
        self.pool.register(table, prompt, len(prompt))
        self.pool.release(table)

    def result(self) -> PoolReplay:
        counters = self.pool.counters
        expected = ("cold", "evicted")
        misses: dict[str, int] = {r: count for r, count in counters.misses.items() if count or r in expected}
        return PoolReplay(
            pool_size=self.pool.capacity,
            num_hits=counters.hits,
            misses={**misses, "uncacheable": self._num_served, "refused": self._num_blocks_refused},
            num_evictions=counters.evictions,
            num_refused=self._num_refused,
        )


def replay_infinite(requests: Sequence[TraceRequest]) -> InfiniteCache:
    seen: set[int] = set()
    num_blocks = num_hits = 0
    for request in requests:
        num_blocks += len(request.hash_ids)
        num_hits += sum(1 for _ in takewhile(seen.__contains__, request.hash_ids))
        seen.update(request.hash_ids)
    return InfiniteCache(num_blocks, num_hits, len(seen))


def replay_pools(requests: Sequence[TraceRequest], pool_sizes: Sequence[int]) -> list[PoolReplay]:
    """All pools see each prompt in turn, so that it is made and hashed only once."""
    replayers = [PoolReplayer(size) for size in pool_sizes]
    for request in requests:
        prompt = prompt_of(request)
        for replayer in replayers:
            replayer.serve(prompt)
    return [replayer.result() for replayer in replayers]


def prompt_of(request: TraceRequest) -> TokenChain:
    """Tokens that are equal exactly where the trace's ids are."""
    tokens = array("I")
    for hash_id in request.hash_ids:
        tokens.extend(array("I", [hash_id]) * TRACE_BLOCK_SIZE)
    del tokens[request.input_length :]
    return TokenChain(b"trace", TRACE_BLOCK_SIZE, tokens)


def hit_rate_records(infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> list[Record]:
    limit = "infinite cache"
    records = [_exact(limit, "limit", "hit rate", "%", 100 * infinite.hit_rate)]
    for replay in replays:
        records.extend(_replay_records(replay, infinite))
    records.append(_exact(limit, "limit", "distinct", "blocks", infinite.num_distinct))
    return records


def _replay_records(replay: PoolReplay, infinite: InfiniteCache) -> Iterator[Record]:
    case = f"pool of {replay.pool_size:,} blocks"
    yield _exact(case, "octet", "hit rate", "%", 100 * replay.hit_rate)
    yield _exact(case, "octet", "of infinite", "%", 100 * share_of(replay, infinite))
    yield _exact(case, "octet", "evictions", "blocks", replay.num_evictions)
    for reason, num_blocks in replay.misses.items():
        yield _exact(case, "octet", f"miss: {reason}", "blocks", num_blocks)
    yield _exact(case, "octet", "refused", "requests", replay.num_refused)


def share_of(replay: PoolReplay, infinite: InfiniteCache) -> float:
    """Of what the infinite cache finds; all of nothing when that is nothing."""
    return replay.hit_rate / infinite.hit_rate if infinite.num_hits else 1.0


def _exact(case: str, system: str, metric: str, unit: str, value: float) -> Record:
    """Counted, not timed: every run gives the same."""
    return Record(BENCH, case, system, metric, unit, value, value, value, runs=1)
