"""The cost of the block pool's operations, and how it grows with the pool and the prompt."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import count, product

from bench.timing import FigureKey, Subject, Targets, Work, interleave
from kvpool import BlockPool, BlockTable, TokenChain, chain_root
from octet.identity import Lane
from simulation.results import BenchRecord

BLOCK_SIZE = 16
TABLE_BLOCKS = 512  # the same table in every pool, so that only the pool's size differs

LANE = Lane("bench", "0" * 64)


def new_pool(size: int, block_size: int = BLOCK_SIZE) -> BlockPool:
    return BlockPool(size + 1, block_size)


def new_tokens(first: int, length: int) -> "array[int]":
    return array("I", [first, *range(1, length)])


def new_chain(first: int, length: int, block_size: int = BLOCK_SIZE) -> TokenChain:
    root = chain_root(LANE, b"", "float32", block_size)
    return TokenChain(root, block_size, new_tokens(first, length))


def hold(pool: BlockPool, chain: TokenChain) -> BlockTable:
    table = pool.apply(pool.admit(chain, len(chain)))
    pool.register(table, chain, len(chain))
    return table


class EmptyPool:
    def __init__(self, size: int) -> None:
        self.pool = new_pool(size)
        self._stub = new_chain(first=0, length=1)

    def ready(self) -> Work:
        return self._allocate_and_free

    def _allocate_and_free(self) -> None:
        pool = self.pool
        pool.release(pool.apply(pool.admit(self._stub, TABLE_BLOCKS * BLOCK_SIZE)))


class FullPool(EmptyPool):
    """A pool in which every block is an unused cache entry, so that each allocation evicts one."""

    TIMES_REPLACED = 2  # evictions of each block before the first measurement

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._names = count(1)
        for _ in range(1 + self.TIMES_REPLACED):
            self._cache(size)

    def ready(self) -> Work:
        num_empty = self.pool.num_free - len(self.pool.index)
        if num_empty:
            self._cache(num_empty)
        return self._allocate_and_free

    def _cache(self, num_blocks: int) -> None:
        """Cache new blocks. They replace empty blocks first, then the least recently used cache entries."""
        chain = new_chain(next(self._names), num_blocks * BLOCK_SIZE)
        self.pool.release(hold(self.pool, chain))


class SharedPrefix:
    """A prefix that one table holds throughout and another shares for a while."""

    def __init__(self, size: int) -> None:
        self.pool = new_pool(size)
        self._chain = new_chain(first=0, length=TABLE_BLOCKS * BLOCK_SIZE + 1)
        self.holder = hold(self.pool, self._chain)
        self.sharer = self._share()

    def ready_to_share(self) -> Work:
        self._leave()
        return self._share

    def ready_to_leave(self) -> Work:
        self._leave()
        self._share()
        return self._leave

    def _share(self) -> BlockTable:
        self.sharer = self.pool.apply(self.pool.admit(self._chain, TABLE_BLOCKS * BLOCK_SIZE))
        return self.sharer

    def _leave(self) -> None:
        self.pool.release(self.sharer)


def lookup(length: int, block_size: int, *, cached: bool) -> Callable[[], Work]:
    """Prepare the lookup of a prompt that is not hashed yet, in a pool that has cached all of it or none of it."""
    pool = new_pool(length // block_size + 1, block_size)
    if cached:
        pool.release(hold(pool, new_chain(0, length, block_size)))

    def ready() -> Work:
        chain = new_chain(0, length, block_size)
        return lambda: pool.admit(chain, length)

    return ready


def bare_hash(length: int, block_size: int) -> Callable[[], Work]:
    """Prepare bare sha256 over the bytes that `lookup` hashes, chained in the same way."""
    tokens = new_tokens(0, length)
    pieces = [tokens[i * block_size : (i + 1) * block_size].tobytes() for i in range((length - 1) // block_size)]

    def work() -> bytes:
        key = bytes(32)
        for piece in pieces:
            key = sha256(key + piece).digest()
        return key

    return lambda: work


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


def _pool_case(size: int) -> str:
    return f"pool of {size:,} blocks"


def _prefix_case(length: int, block_size: int) -> str:
    return f"prefix of {length:,} tokens, block size {block_size}"


TARGETS: Targets = {
    **{(_pool_case(size), metric): "< 2,000 ns" for size in POOL_SIZES for metric in POOL_METRICS if "+free" in metric},
    **{(_prefix_case(50_000, 16), metric): "< 25,000 µs" for metric in (COLD, HIT)},
}


def measure_kv(runs: int, pool_sizes: Sequence[int] = POOL_SIZES) -> list[BenchRecord]:
    board = interleave(BENCH, list(_subjects(pool_sizes)), runs)
    records = board.records()
    smallest, largest = min(pool_sizes), max(pool_sizes)
    for metric in POOL_METRICS:
        few, many = (FigureKey(_pool_case(size), "octet", metric) for size in (smallest, largest))
        records += board.ratio(many, few, f"pool of {largest:,} blocks vs {smallest:,}")
    for block_size, length, metric in product(BLOCK_SIZES, PREFIX_LENGTHS, (COLD, HIT)):
        case = _prefix_case(length, block_size)
        records += board.ratio(FigureKey(case, "octet", metric), FigureKey(case, "limit", LIMIT), f"{case} vs limit")
    return records


def _subjects(pool_sizes: Sequence[int]) -> Iterator[Subject]:
    for (metric, ready), size in product(POOL_METRICS.items(), pool_sizes):
        yield Subject(_pool_case(size), metric, "ns/block", ready(size), TABLE_BLOCKS)
    for block_size, length in product(BLOCK_SIZES, PREFIX_LENGTHS):
        case = _prefix_case(length, block_size)
        yield Subject(case, COLD, "µs", lookup(length, block_size, cached=False))
        yield Subject(case, HIT, "µs", lookup(length, block_size, cached=True))
        yield Subject(case, LIMIT, "µs", bare_hash(length, block_size), system="limit")
