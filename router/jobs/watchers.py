"""Those who follow jobs: told when there is more to read, wherever it was written."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from octet.store.job_rows import Head
from router.jobs.refusals import too_many_watch

_SHARES = 4
"""Of one tenant among others: a part of all, and at least one."""


class Watchers:
    """Belongs to the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_of_tenant = max(1, most // _SHARES)
        self._of_tenant: Counter[str] = Counter()
        self._events: dict[str, list[asyncio.Event]] = {}
        self._heads: dict[str, Head | None] = {}
        """As far as they are known; None: it was looked for and is not there."""

    def __len__(self) -> int:
        return sum(map(len, self._events.values()))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._events)

    @contextmanager
    def watching(self, job_id: str, tenant: str) -> Iterator[asyncio.Event]:
        """Set whenever there may be more of the job to read. Raises Refusal when too many watch, of all or of the
        tenant's. Where nobody has a name, all are one another's."""
        if len(self) >= self._most:
            raise too_many_watch(self._most)
        if tenant and self._of_tenant[tenant] >= self._most_of_tenant:
            raise too_many_watch(self._most_of_tenant, " of one tenant")
        changed = asyncio.Event()
        self._events.setdefault(job_id, []).append(changed)
        self._of_tenant[tenant] += 1
        try:
            yield changed
        finally:
            self._of_tenant[tenant] -= 1
            self._of_tenant += Counter()  # without those who are gone
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
