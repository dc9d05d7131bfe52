"""Those who follow jobs: told when there is more to read, wherever it was written."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from octet.rpc.refusal import queue_full
from octet.store.job_rows import Head


class Watchers:
    """Belongs to the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: dict[str, list[asyncio.Event]] = {}
        self._heads: dict[str, Head | None] = {}
        """As far as they are known; None: it was looked for and is not there."""

    def __len__(self) -> int:
        return sum(map(len, self._events.values()))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._events)

    @contextmanager
    def watching(self, job_id: str) -> Iterator[asyncio.Event]:
        """Set whenever there may be more of the job to read. Raises Refusal when too many watch."""
        if len(self) >= self._most:
            raise queue_full("watching jobs", self._most, None)
        changed = asyncio.Event()
        self._events.setdefault(job_id, []).append(changed)
        try:
            yield changed
        finally:
            self._events[job_id].remove(changed)
            if not self._events[job_id]:
                del self._events[job_id]
                self._heads.pop(job_id, None)

    def told(self, job_id: str) -> None:
        """Something new of it is on record."""
        for changed in self._events.get(job_id, ()):
            changed.set()

    def see(self, asked: Sequence[str], heads: Sequence[Head]) -> None:
        """What a look at the store has shown of those that were asked for."""
        found = {head.id: head for head in heads}
        for job_id in asked:
            head = found.get(job_id)
            if job_id in self._events and (job_id not in self._heads or self._heads[job_id] != head):
                self._heads[job_id] = head
                self.told(job_id)
