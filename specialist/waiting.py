"""A priority queue whose members can leave from anywhere."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from specialist.sequence import Sequence

Rank = tuple[float, ...]


class WaitingQueue:
    """Sequences by rank, smallest first. Every operation is O(log n) amortised.

    Leaving from the middle only marks the entry dead; the dead are swept out when they outnumber the living.
    """

    def __init__(self, rank: Callable[[Sequence], Rank]) -> None:
        self._rank = rank
        self._heap: list[tuple[Rank, int, Sequence]] = []
        self._members: dict[Sequence, int] = {}
        self._entries = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of rank. O(n log n): for inspection, not for the hot path."""
        return iter(sorted(self._members, key=self._rank))

    def in_no_order(self) -> Iterator[Sequence]:
        return iter(self._members)

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._members

    def push(self, seq: Sequence) -> None:
        self._entries += 1
        self._members[seq] = self._entries
        heappush(self._heap, (self._rank(seq), self._entries, seq))

    def peek(self) -> Sequence | None:
        while self._heap:
            _, entry, seq = self._heap[0]
            if self._members.get(seq) == entry:
                return seq
            heappop(self._heap)
        return None

    def discard(self, seq: Sequence) -> None:
        if self._members.pop(seq, None) is not None and len(self._heap) > 2 * len(self._members) + 16:
            self._heap = [item for item in self._heap if self._members.get(item[2]) == item[1]]
            heapify(self._heap)
