"""Jobs as the router's event loop sees them: nothing here blocks, and what is acknowledged is on the disk."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from octet.store.database import Database
from octet.store.job_retention import prune_jobs
from octet.store.job_rows import (
    Holding,
    JobLimits,
    JobRoom,
    JobRow,
    KeyTaken,
    NewJob,
    NoRoom,
    Sight,
    Writing,
)
from octet.store.job_table import JobTable

T = TypeVar("T")


class Ask(Protocol):
    """Raises StoreUnavailable."""

    def __call__(self, do: Callable[[Database], T], /) -> Awaitable[T]: ...


class JobStore:
    """Every call raises StoreUnavailable, and may then be made again: it has one effect."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def submit(self, new: NewJob, room: JobRoom) -> tuple[JobRow, bool] | NoRoom | KeyTaken:
        """The job, and whether it is new."""
        return await self._ask(lambda database: JobTable(database).submit(new, room))

    async def claim(self, owner: str, now_ms: int, *, late: bool = False) -> JobRow | None:
        """`late`: only one that is past its deadline. `owner` is new for every claim."""
        return await self._ask(lambda database: JobTable(database).claim(owner, now_ms, late=late))

    async def write(self, writing: Writing) -> bool:
        """False: the job is in other hands, has ended or is gone, and nothing was written."""
        return await self._ask(lambda database: JobTable(database).write(writing))

    async def beat(self, mine: Sequence[tuple[str, int]]) -> set[str]:
        """Whoever holds these, by id and epoch, is there. Those that are still held."""
        return await self._ask(lambda database: JobTable(database).beat(mine))

    async def release(self, job_id: str, epoch: int, due_ms: int, *, lost: bool) -> None:
        """Anybody may take it, from `due_ms` on."""
        await self._ask(lambda database: JobTable(database).release(job_id, epoch, due_ms, lost=lost))

    async def take_away(self, stale: Sequence[Holding]) -> None:
        """From whoever is not there any more."""
        await self._ask(lambda database: JobTable(database).take_away(stale))

    async def cancel(self, job_id: str, tenant: str, now_ms: int) -> JobRow | None:
        """The job as it is then: cancelled, or ended before."""
        return await self._ask(lambda database: JobTable(database).cancel(job_id, tenant, now_ms))

    async def look(self, now_ms: int, watched: Sequence[str]) -> Sight:
        return await self._ask(lambda database: JobTable(database).look(now_ms, watched))

    async def get(self, job_id: str, tenant: str) -> JobRow | None:
        return await self._ask(lambda database: JobTable(database).get(job_id, tenant))

    async def newest(self, tenant: str, most: int, before: str) -> Sequence[JobRow] | None:
        """Newest first; None where the tenant has no job `before`."""
        return await self._ask(lambda database: JobTable(database).newest(tenant, most, before))

    async def events(self, job_id: str, after: int, most_bytes: int) -> Sequence[tuple[int, bytes]]:
        """At least one, where there is one, and no more than fit."""
        return await self._ask(lambda database: JobTable(database).events(job_id, after, most_bytes))

    async def prune(self, limits: JobLimits, now_ms: int) -> bool:
        """Whether there is more to do."""
        return await self._ask(partial(_pruned, limits, now_ms))


def _pruned(limits: JobLimits, now_ms: int, database: Database) -> bool:
    return prune_jobs(database, limits, now_ms)
