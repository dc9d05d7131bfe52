"""What the block pool's operations cost, and how that grows with the pool and the prompt."""

from collections.abc import Callable, Iterator, Sequence

from bench.measure import Subject, Timing, Work, interleave
from bench.pool_states import TABLE_BLOCKS, EmptyPool, FullPool, SharedPrefix
from bench.prefix import BareHash, Lookup
from bench.record import Record
from bench.table import Targets

BENCH = "kv"
POOL_SIZES = (1_000, 10_000, 100_000)
PREFIX_LENGTHS = (1_000, 10_000, 50_000)
BLOCK_SIZES = (16, 8)

POOL_METRICS: dict[str, Callable[[int], Callable[[], Work]]] = {
    "allocate+free, empty pool": lambda size: EmptyPool(size).ready,
    "allocate+free, evicting": lambda size: FullPool(size).ready,
    "admit shared prefix": lambda size: SharedPrefix(size).ready_to_share,
    "release shared table": lambda size: SharedPrefix(size).ready_to_leave,
}
COLD, HIT, LIMIT = "hash+match, all misses", "hash+match, all hits", "sha256 alone"


def measure_kv(runs: int, pool_sizes: Sequence[int] = POOL_SIZES) -> list[Record]:
    timings = interleave([*_pool_subjects(pool_sizes), *_prefix_subjects()], runs)
    growth = _growth(timings, smallest=min(pool_sizes), largest=max(pool_sizes))
    return [*(timing.record(BENCH) for timing in timings), *growth, *_above_limit(timings)]


def kv_targets() -> Targets:
    allocations = [metric for metric in POOL_METRICS if metric.startswith("allocate")]
    targets = {(_pool_case(size), metric): "< 2,000 ns" for size in POOL_SIZES for metric in allocations}
    return {**targets, **{(_prefix_case(50_000, 16), metric): "< 25,000 µs" for metric in (COLD, HIT)}}


def _pool_subjects(pool_sizes: Sequence[int]) -> Iterator[Subject]:
    for metric, ready in POOL_METRICS.items():
        for size in pool_sizes:
            yield Subject(_pool_case(size), metric, "ns/block", ready(size), TABLE_BLOCKS)


def _prefix_subjects() -> Iterator[Subject]:
    for block_size in BLOCK_SIZES:
        for length in PREFIX_LENGTHS:
            case = _prefix_case(length, block_size)
            yield Subject(case, COLD, "µs", Lookup(length, block_size, cached=False).ready)
            yield Subject(case, HIT, "µs", Lookup(length, block_size, cached=True).ready)
            yield Subject(case, LIMIT, "µs", BareHash(length, block_size).ready, system="limit")


def _growth(timings: Sequence[Timing], smallest: int, largest: int) -> Iterator[Record]:
    found = {(timing.subject.case, timing.subject.metric): timing for timing in timings}
    case = f"pool of {largest:,} blocks vs {smallest:,}"
    for metric in POOL_METRICS:
        base = found[_pool_case(smallest), metric]
        yield found[_pool_case(largest), metric].ratio(base, BENCH, case, metric)


def _above_limit(timings: Sequence[Timing]) -> Iterator[Record]:
    limits = {timing.subject.case: timing for timing in timings if timing.subject.system == "limit"}
    for timing in timings:
        case, metric = timing.subject.case, timing.subject.metric
        if metric in (COLD, HIT):
            yield timing.ratio(limits[case], BENCH, f"{case} vs limit", metric)


def _pool_case(size: int) -> str:
    return f"pool of {size:,} blocks"


def _prefix_case(length: int, block_size: int) -> str:
    return f"prefix of {length:,} tokens, block size {block_size}"
