"""The share of a trace's prompts that a prefix cache finds, by the size of the pool."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from kvpool import BlockPool, TokenChain
from simulation.plots import LIMIT, LINE, MUTED, open_figure
from simulation.results import BenchRecord, summary
from simulation.traces import TRACE_BLOCK_SIZE, MooncakeRequest

BENCH = "kv trace"
POOL_SIZES = tuple(1_000 * 2**i for i in range(9))


@dataclass(frozen=True, slots=True)
class InfiniteCache:
    num_blocks: int  # all blocks of all prompts
    num_hits: int
    num_distinct: int  # a pool of this size never evicts

    @property
    def hit_rate(self) -> float:
        return self.num_hits / self.num_blocks


@dataclass(frozen=True, slots=True)
class PoolReplay:
    pool_size: int
    num_hits: int
    misses: Mapping[str, int]
    """Blocks by reason: the pool's own reasons; "uncacheable" for the block with a prompt's last token, which must be
    computed; "refused" for blocks of prompts that are larger than the pool."""
    num_evictions: int
    num_refused: int  # prompts that are larger than the pool

    @property
    def hit_rate(self) -> float:
        return self.num_hits / (self.num_hits + sum(self.misses.values()))


class PoolReplayer:
    """Serves prompts from a real pool, one after the other, like a replica with one slot."""

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


def replay_infinite(requests: Sequence[MooncakeRequest]) -> InfiniteCache:
    seen: set[int] = set()
    num_blocks = num_hits = 0
    for request in requests:
        num_blocks += len(request.hash_ids)
        num_hits += sum(1 for _ in takewhile(seen.__contains__, request.hash_ids))
        seen.update(request.hash_ids)
    return InfiniteCache(num_blocks, num_hits, len(seen))


def replay_pools(requests: Sequence[MooncakeRequest], pool_sizes: Sequence[int]) -> list[PoolReplay]:
    replayers = [PoolReplayer(size) for size in pool_sizes]
    for request in requests:
        prompt = build_prompt(request)
        for replayer in replayers:
            replayer.serve(prompt)
    return [replayer.result() for replayer in replayers]


def build_prompt(request: MooncakeRequest) -> TokenChain:
    """Return a prompt in which each token is the id of its block, so that blocks are equal exactly if their ids are."""
    tokens = array("I")
    for hash_id in request.hash_ids:
        tokens.extend(array("I", [hash_id]) * TRACE_BLOCK_SIZE)
    del tokens[request.input_length :]
    return TokenChain(b"trace", TRACE_BLOCK_SIZE, tokens)


def hit_rate_records(infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> list[BenchRecord]:
    limit = "infinite cache"
    records = [summary([100 * infinite.hit_rate], BENCH, limit, "hit rate", "%", "limit")]
    for replay in replays:
        records.extend(_replay_records(replay, infinite))
    records.append(summary([infinite.num_distinct], BENCH, limit, "distinct", "blocks", "limit"))
    return records


def _replay_records(replay: PoolReplay, infinite: InfiniteCache) -> Iterator[BenchRecord]:
    case = f"pool of {replay.pool_size:,} blocks"
    yield summary([100 * replay.hit_rate], BENCH, case, "hit rate", "%", "octet")
    yield summary([100 * compute_share(replay, infinite)], BENCH, case, "of infinite", "%", "octet")
    yield summary([replay.num_evictions], BENCH, case, "evictions", "blocks", "octet")
    for reason, num_blocks in replay.misses.items():
        yield summary([num_blocks], BENCH, case, f"miss: {reason}", "blocks", "octet")
    yield summary([replay.num_refused], BENCH, case, "refused", "requests", "octet")


def compute_share(replay: PoolReplay, infinite: InfiniteCache) -> float:
    return replay.hit_rate / infinite.hit_rate if infinite.num_hits else 1.0


NEARLY_ALL = 0.97


def plot_hit_rate(path: Path, infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> None:
    with open_figure(path) as figure:
        _draw(figure.add_subplot(), infinite, sorted(replays, key=lambda replay: replay.pool_size))


def _draw(axes: Any, infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> None:
    sizes = [replay.pool_size for replay in replays]
    axes.plot(sizes, [100 * replay.hit_rate for replay in replays], color=LINE, marker="o", markersize=5)
    limit, working_set = 100 * infinite.hit_rate, infinite.num_distinct
    axes.axhline(limit, color=LIMIT, linestyle="--", linewidth=1.2)
    axes.text(0.01, limit + 0.5, f"infinite cache, {limit:.1f} %", transform=axes.get_yaxis_transform(), color=LIMIT)
    axes.axvline(working_set, color=MUTED, linestyle=":", linewidth=1.2)
    words, across = f"working set,\n{_short(working_set)} blocks ", axes.get_xaxis_transform()
    axes.text(working_set, 0.04, words, transform=across, ha="right", color=MUTED)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    axes.set_ylim(0, max(1, 118 * infinite.hit_rate))
    axes.set_xlabel("pool size, blocks (log scale)")
    axes.set_ylabel("prefix hit rate, % of all blocks")
    axes.set_title(_conclusion(infinite, replays), loc="left", fontsize=12)


def _conclusion(infinite: InfiniteCache, replays: Sequence[PoolReplay]) -> str:
    enough = [replay for replay in replays if compute_share(replay, infinite) >= NEARLY_ALL]
    pool = enough[0] if enough else replays[-1]
    found = 100 * compute_share(pool, infinite)
    return f"{pool.pool_size:,} blocks find {found:.0f} % of what an infinite cache would"


def _short(count: int) -> str:
    return f"{count / 1000:.3g}k" if count >= 1000 else str(count)
