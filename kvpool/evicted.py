"""Which keys were evicted lately: tells a prompt never seen from a pool that is too small."""

from kvpool.block import BlockKey


class RecentlyEvicted:
    """Remembers at least the last `capacity` keys and less than twice as many, in constant time a key.

    Two generations: when the younger is full it becomes the older, and the older is forgotten at once.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._younger: set[BlockKey] = set()
        self._older: set[BlockKey] = set()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._younger or key in self._older

    def add(self, key: BlockKey) -> None:
        self._younger.add(key)
        if len(self._younger) == self._capacity:
            self._younger, self._older = set(), self._younger
