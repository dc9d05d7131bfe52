"""Block pools in the states that decide what an operation costs."""

from array import array
from itertools import count

from bench.measure import Work
from kvpool import BlockPool, BlockTable, TokenChain, chain_root
from octet.identity import Lane

BLOCK_SIZE = 16
TABLE_BLOCKS = 512
"""The same table in every pool, so that only the pool's size differs."""

LANE = Lane("bench", "0" * 64)


def new_pool(size: int, block_size: int = BLOCK_SIZE) -> BlockPool:
    """A pool that can hand out `size` blocks; block 0 comes on top."""
    return BlockPool(size + 1, block_size)


def new_tokens(first: int, length: int) -> "array[int]":
    return array("I", [first, *range(1, length)])


def new_chain(first: int, length: int, block_size: int = BLOCK_SIZE) -> TokenChain:
    """Chains with different first tokens share nothing."""
    root = chain_root(LANE, b"", "float32", block_size)
    return TokenChain(root, block_size, new_tokens(first, length))


def hold(pool: BlockPool, chain: TokenChain) -> BlockTable:
    """A table of the whole chain, as if all of it had been computed."""
    table = pool.apply(pool.admit(chain, len(chain)))
    pool.register(table, chain, len(chain))
    return table


class EmptyPool:
    """Nothing has ever been cached: blocks are taken and given back, no more."""

    def __init__(self, size: int) -> None:
        self.pool = new_pool(size)
        self._stub = new_chain(first=0, length=1)

    def ready(self) -> Work:
        return self._allocate_and_free

    def _allocate_and_free(self) -> None:
        pool = self.pool
        pool.release(pool.apply(pool.admit(self._stub, TABLE_BLOCKS * BLOCK_SIZE)))


class FullPool(EmptyPool):
    """Every block is a cache entry that nobody uses, and has been others before: each allocation evicts one."""

    TIMES_REPLACED = 2
    """Evictions that the pool has seen when it is first measured, for each of its blocks."""

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
        """Empty blocks are taken first."""
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
        """Releasing twice is harmless."""
        self.pool.release(self.sharer)
