"""Jobs that have ended are kept for a while, and so many of them: where there are too many, the oldest go first, of the
tenant that holds the most. A few at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from octet.store.database import Database
from octet.store.job_rows import JobLimits

_BITE = 64
_ENDED = "status IN ('done', 'failed', 'cancelled')"


class EndedJob(NamedTuple):
    id: str
    tenant: str
    ended_ms: int
    num_bytes: int


def prune_jobs(database: Database, limits: JobLimits, now_ms: int) -> bool:
    """Whether there is more to do."""
    execute = database.connection.execute
    rows = execute(f"SELECT id, tenant, ended_ms, num_bytes FROM jobs WHERE {_ENDED} ORDER BY ended_ms, number")  # noqa: S608
    ended = [EndedJob(job_id, tenant, int(ended_ms), int(size)) for job_id, tenant, ended_ms, size in rows]
    old = list(islice(beyond(ended, limits, now_ms), _BITE + 1))
    bite = [(job_id,) for job_id in old[:_BITE]]
    if bite:
        with database.writing():
            database.next_mark()
            database.connection.execute_each("DELETE FROM job_events WHERE job = ?", bite)
            database.connection.execute_each("DELETE FROM jobs WHERE id = ?", bite)
    return len(old) > len(bite)


def beyond(ended: Iterable[EndedJob], limits: JobLimits, now_ms: int) -> Iterator[str]:
    """The ids of those that go, in their order. `ended` are the oldest first."""
    held: dict[str, deque[EndedJob]] = {}
    for job in ended:
        if job.ended_ms <= now_ms - limits.keep_ms:
            yield job.id
        else:
            held.setdefault(job.tenant, deque()).append(job)
    yield from _evicted(held, _one, limits.most)
    yield from _evicted(held, _size, limits.most_bytes)


def _evicted(held: dict[str, deque[EndedJob]], weigh: Callable[[EndedJob], int], most: int) -> Iterator[str]:
    """Until what is held weighs no more: the oldest of whoever holds the most, of equals of whose oldest is older."""
    weights = {tenant: sum(map(weigh, jobs)) for tenant, jobs in held.items()}
    total = sum(weights.values())
    while total > most:
        tenant = max(weights, key=lambda each: (weights[each], -held[each][0].ended_ms, each))
        job = held[tenant].popleft()
        total -= weigh(job)
        weights[tenant] -= weigh(job)
        if not held[tenant]:
            del held[tenant], weights[tenant]
        yield job.id


def _one(_: EndedJob) -> int:
    return 1


def _size(job: EndedJob) -> int:
    return job.num_bytes
