"""Which block holds which token of one sequence."""

from array import array
from collections.abc import Iterator


class BlockTable:
    """Block ids in token order. Only ever appended to, and only by the pool.

    A reader that remembers a length may therefore go on reading that many entries without a copy, until the
    table is released.
    """

    __slots__ = ("block_ids", "block_size", "num_registered", "released")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.block_ids = array("i")
        self.num_registered = 0
        """Leading blocks whose registration is settled: hits, and blocks a commit has registered."""
        self.released = False

    def __len__(self) -> int:
        return len(self.block_ids)

    @property
    def num_slots(self) -> int:
        return len(self.block_ids) * self.block_size

    def slots(self, start: int, stop: int) -> Iterator[int]:
        """Physical slot of each token position in [start, stop)."""
        size = self.block_size
        for position in range(start, stop):
            yield self.block_ids[position // size] * size + position % size
