"""Blocks of KV cache and the list of those that nobody uses."""

from collections.abc import Iterable, Iterator
from typing import NewType

BlockId = NewType("BlockId", int)
BlockKey = NewType("BlockKey", bytes)

GARBAGE = BlockId(0)
"""Padding rows write here. Never allocated, never cached, never read."""


class Block:
    """A fixed run of token slots. Free with a key: an evictable cache entry. Free without: empty."""

    __slots__ = ("block_id", "key", "next", "prev", "ref_count", "tokens")

    prev: "Block"
    next: "Block"

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: BlockKey | None = None
        self.tokens = b""
        self.prev = self.next = self

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_count={self.ref_count}, keyed={self.key is not None})"


class FreeList:
    """A ring of blocks around a sentinel, linked through the blocks themselves: every change is O(1) a block.

    The front is reused first. Empty blocks go to the front, cache entries to the back, so that the entry
    unused for longest is the first to be evicted.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.ring = Block(BlockId(-1))
        self._length = 0
        for block in blocks:
            self.push_back(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self.ring.next
        while block is not self.ring:
            yield block
            block = block.next

    def take(self, count: int) -> list[Block]:
        """Cut the first `count` blocks out."""
        ring = self.ring
        taken = []
        block = ring.next
        for _ in range(count):
            taken.append(block)
            block = block.next
        ring.next = block
        block.prev = ring
        self._length -= count
        return taken

    def remove(self, block: Block) -> None:
        block.prev.next = block.next
        block.next.prev = block.prev
        self._length -= 1

    def push_front(self, block: Block) -> None:
        self._insert(block, self.ring, self.ring.next)

    def push_back(self, block: Block) -> None:
        self._insert(block, self.ring.prev, self.ring)

    def _insert(self, block: Block, before: Block, after: Block) -> None:
        block.prev = before
        block.next = after
        before.next = after.prev = block
        self._length += 1
