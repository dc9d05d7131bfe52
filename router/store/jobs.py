"""The job tables. A router holds a job under an epoch number, which every claim, release, revocation or cancellation
raises. A write is valid only under the current epoch. So a job ends once, even if a former holder writes late."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from octet.config.ensemble import JobsConfig
from router.store.database import Database

T = TypeVar("T")
_LIVE = "status IN ('queued', 'running')"
_ENDED = "status IN ('done', 'failed', 'cancelled')"
_FREE = f"owner = '' AND {_LIVE}"
_DUE = "due_ms <= ?"
_LATE = "deadline_ms <= ?"
_PAGE_ROWS = 256
_PRUNE_ROWS = 64
_MEASURED_JOBS = 16  # a wait is estimated from the times of this many answered jobs
_DUE_AT_ONCE = 0  # due for every router, even if their clocks differ
ENDED_STATUSES = ("done", "failed", "cancelled")
EndedStatus = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class JobRow:
    id: str
    number: int  # counts up in the order of submission
    tenant: str
    caller: str  # the name of the key that submitted the job
    digest: str  # the digest of the request; outlives the request itself
    priority: int
    status: str
    submitted_ms: int
    deadline_ms: int
    started_ms: int | None
    ended_ms: int | None
    epoch: int  # grows with every claim, release, revocation or cancellation; writes under an older epoch are rejected
    attempts: int  # the number of times that the job was started
    lost: int  # the number of times that its router or replica was lost
    events: int  # the number of the last event
    num_bytes: int  # size of the events and of the request or, after the end, the result
    request: bytes  # empty once the job has ended
    result: bytes  # the result without its text, which is in the events

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED_STATUSES


_COLUMNS = ", ".join(each.name for each in fields(JobRow))
_SUMMARY = _COLUMNS.replace("request", "SUBSTR(request, 1, 0)")  # without the request, which only an attempt needs


class NewJob(NamedTuple):
    id: str
    tenant: str
    caller: str
    idempotency_key: str | None
    digest: str
    priority: int
    submitted_ms: int
    deadline_ms: int
    request: bytes
    event: bytes  # the first event


@dataclass(frozen=True, slots=True)
class JobQueueFull:
    what: str
    limit: int


class IdempotencyKeyTaken:
    """The tenant has used the same idempotency key for a different request."""


class JobEnding(NamedTuple):
    status: EndedStatus
    at_ms: int
    result: bytes


class JobWrite(NamedTuple):
    """A write to a job. Its events are appended after event number `before`, at most once."""

    id: str
    epoch: int
    before: int  # the number of the last event known to be written
    events: Sequence[bytes] = ()
    begins_ms: int | None = None  # set if the job starts with these events
    ends: JobEnding | None = None  # set if the job ends; an empty last event then refers to the row


class JobLease(NamedTuple):
    """A claimed job as other routers see it. If its beat no longer changes, the router that holds it has stopped."""

    id: str
    epoch: int
    beat: int


class JobProgress(NamedTuple):
    id: str
    events: int
    has_ended: bool


class JobScan(NamedTuple):
    has_due: bool  # whether a job can be claimed now
    has_late: bool  # whether an unclaimed job is past its deadline
    leases: Sequence[JobLease]
    progress: Sequence[JobProgress]  # progress of the watched jobs that exist


class JobBacklog(NamedTuple):
    """What a queued job waits for."""

    is_claimed: bool  # whether a router already has it
    due_ms: int  # no router claims it earlier
    ahead: int  # queued jobs of a higher priority, or older ones of the same
    claimed: int  # jobs that routers serve now
    seconds: Sequence[float]  # how long the last answered jobs ran

    def estimate_ms(self, slots: int, now_ms: int) -> int | None:
        """Estimate the time until the job is served, if routers serve at least `slots` jobs at once. Return None if no
        answered job was measured."""
        pause = max(0, self.due_ms - now_ms)
        slots = max(slots, self.claimed)
        excess = self.ahead + self.claimed - slots
        if self.is_claimed or excess < 0:
            return 0 if self.is_claimed else pause
        if not self.seconds or not slots:
            return None
        return max(pause, round(1000 * (excess + 1) * sum(self.seconds) / len(self.seconds) / slots))


class RunJobs(Protocol):
    """Runs `call` on the store's thread, as in `await jobs(lambda table: table.get(job_id, tenant))`. `call` may run
    more than once, and must not read changing state. Raises StoreUnavailable; the caller may then try again."""

    async def __call__(self, call: "Callable[[JobTable], T]", /) -> T: ...


class JobTable:
    """The stored jobs. Calls block, and run on the store's thread. Every change is one idempotent transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.connection.execute
        self._execute_each = database.connection.execute_each

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._database.transaction():
            self._database.advance()
            yield

    def submit(self, new: NewJob, limits: JobsConfig) -> tuple[JobRow, bool] | JobQueueFull | IdempotencyKeyTaken:
        with self._writing():
            existing = self._find_one("id = ?", new.id)
            if existing is not None:
                return existing, True
            if new.idempotency_key is not None:
                existing = self._find_one("tenant = ? AND idempotency_key = ?", new.tenant, new.idempotency_key)
            if existing is not None:
                return (existing, False) if existing.digest == new.digest else IdempotencyKeyTaken()
            return self._check_limits(new, limits) or (self._insert(new), True)

    def claim(self, owner: str, now_ms: int, *, late: bool = False) -> JobRow | None:
        """Claim a due job or, with `late`, a job past its deadline. The tenant with the fewest claimed jobs comes
        first, then the highest priority, then the oldest job. A retry with the same `owner` returns the same job."""
        with self._writing():
            claimed = self._find("owner = ?", owner, columns=_COLUMNS)
            if claimed:
                return claimed[0]
            rows = self._execute(
                "SELECT j.id FROM jobs j LEFT JOIN (SELECT tenant, COUNT(*) AS taken FROM jobs "  # noqa: S608
                f"WHERE owner <> '' AND {_LIVE} GROUP BY tenant) t ON t.tenant = j.tenant WHERE j.{_FREE} "
                f"AND j.{_LATE if late else _DUE} ORDER BY COALESCE(t.taken, 0), j.priority DESC, j.number LIMIT 1",
                (now_ms,),
            )
            if not rows:
                return None
            self._update(rows[0][0], "owner = ?, epoch = epoch + 1, beat = beat + 1", owner)
            return self._find("id = ?", rows[0][0], columns=_COLUMNS)[0]

    def write(self, write: JobWrite) -> bool:
        """Store the write and return True. Return False if the job was taken over, has ended or does not exist."""
        with self._writing():
            row = self._find_one("id = ?", write.id)
            events = [*write.events, *([b""] if write.ends is not None else [])]
            if row is None or row.epoch != write.epoch:
                return False
            if events and row.events == write.before + len(events):
                return True  # committed earlier, but the acknowledgement was lost
            if row.has_ended or row.events != write.before:
                return False
            self._append(row, events)
            if write.begins_ms is not None:
                started = "status = 'running', attempts = attempts + 1, started_ms = COALESCE(started_ms, ?)"
                self._update(write.id, started, write.begins_ms)
            if write.ends is not None:
                self._end(write.id, *write.ends)
            return True

    def renew(self, claimed: Sequence[tuple[str, int]]) -> set[str]:
        with self._writing():
            self._execute_each("UPDATE jobs SET beat = beat + 1 WHERE id = ? AND epoch = ? AND owner <> ''", claimed)
            held = {(each.id, each.epoch) for each in self._leases()}
        return {job_id for job_id, epoch in claimed if (job_id, epoch) in held}

    def release(self, job_id: str, epoch: int, due_ms: int, *, lost: bool) -> None:
        with self._writing():
            self._execute(
                "UPDATE jobs SET owner = '', epoch = epoch + 1, due_ms = ?, lost = lost + ? "  # noqa: S608
                f"WHERE id = ? AND epoch = ? AND owner <> '' AND {_LIVE}",
                (due_ms, int(lost), job_id, epoch),
            )

    def revoke(self, expired: Sequence[JobLease]) -> None:
        with self._writing():
            self._execute_each(
                "UPDATE jobs SET owner = '', epoch = epoch + 1, lost = lost + 1 "  # noqa: S608
                f"WHERE id = ? AND epoch = ? AND beat = ? AND owner <> '' AND {_LIVE}",
                expired,
            )

    def cancel(self, job_id: str, tenant: str, now_ms: int) -> JobRow | None:
        with self._writing():
            row = self._find_one("id = ? AND tenant = ?", job_id, tenant)
            if row is None or row.has_ended:
                return row
            self._append(row, [b""])
            self._update(job_id, "epoch = epoch + 1")
            self._end(job_id, "cancelled", now_ms, b"")
            return self._find_one("id = ?", job_id)

    def scan(self, now_ms: int, watched: Sequence[str]) -> JobScan:
        has_due, has_late = (
            bool(self._execute(f"SELECT 1 FROM jobs WHERE {_FREE} AND {when} LIMIT 1", (now_ms,)))  # noqa: S608
            for when in (_DUE, _LATE)
        )
        progress: list[JobProgress] = []
        for start in range(0, len(watched), _PAGE_ROWS):
            page = watched[start : start + _PAGE_ROWS]
            marks = ", ".join("?" * len(page))
            found = self._execute(f"SELECT id, events, status FROM jobs WHERE id IN ({marks})", page)  # noqa: S608
            progress += [JobProgress(name, int(events), status in ENDED_STATUSES) for name, events, status in found]
        return JobScan(has_due, has_late, self._leases(), progress)

    def get(self, job_id: str, tenant: str) -> JobRow | None:
        return self._find_one("id = ? AND tenant = ?", job_id, tenant)

    def backlog(self, row: JobRow) -> JobBacklog | None:
        """Return what the job waits for; None if it is not queued any more."""
        found = self._execute("SELECT owner, due_ms FROM jobs WHERE id = ? AND status = 'queued'", (row.id,))
        if not found:
            return None
        before = "priority > ? OR (priority = ? AND number < ?)"
        ((ahead,),) = self._execute(
            f"SELECT COUNT(*) FROM jobs WHERE {_FREE} AND ({before})",  # noqa: S608
            (row.priority, row.priority, row.number),
        )
        ((claimed,),) = self._execute(f"SELECT COUNT(*) FROM jobs WHERE owner <> '' AND {_LIVE}")  # noqa: S608
        seconds = self._execute(
            "SELECT ended_ms - started_ms FROM jobs WHERE status = 'done' AND started_ms IS NOT NULL "
            "ORDER BY ended_ms DESC LIMIT ?",
            (_MEASURED_JOBS,),
        )
        ((owner, due_ms),) = found
        measured = [max(0, int(milliseconds)) / 1000 for (milliseconds,) in seconds]
        return JobBacklog(bool(owner), int(due_ms), int(ahead), int(claimed), measured)

    def newest(self, tenant: str, most: int, before: str) -> list[JobRow] | None:
        """List the tenant's jobs, newest first; if `before` is given, only jobs older than that job. Return None if the
        tenant has no job `before`."""
        end = (1 << 63) - 1
        if before:
            row = self._find_one("id = ? AND tenant = ?", before, tenant)
            if row is None:
                return None
            end = row.number
        return self._find("tenant = ? AND number < ? ORDER BY number DESC LIMIT ?", tenant, end, most)

    def events(self, job_id: str, after: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Return the events after number `after`, with their numbers: at most `most_bytes`, but at least one event."""
        found: list[tuple[int, bytes]] = []
        size = 0
        while True:
            last = found[-1][0] if found else after
            page = self._execute(
                "SELECT number, raw FROM job_events WHERE job = ? AND number > ? ORDER BY number LIMIT ?",
                (job_id, last, _PAGE_ROWS),
            )
            for number, raw in page:
                size += len(raw)
                if found and size > most_bytes:
                    return found
                found.append((int(number), bytes(raw)))
            if len(page) < _PAGE_ROWS:
                return found

    def prune(self, limits: JobsConfig, now_ms: int) -> bool:
        rows = self._execute(
            f"SELECT id, tenant, ended_ms, num_bytes FROM jobs WHERE {_ENDED} ORDER BY ended_ms, number"  # noqa: S608
        )
        expired = list(islice(find_expired_jobs((EndedJob(*row) for row in rows), limits, now_ms), _PRUNE_ROWS + 1))
        page = [(job_id,) for job_id in expired[:_PRUNE_ROWS]]
        if page:
            with self._writing():
                self._execute_each("DELETE FROM job_events WHERE job = ?", page)
                self._execute_each("DELETE FROM jobs WHERE id = ?", page)
        return len(expired) > len(page)

    def _insert(self, new: NewJob) -> JobRow:
        ((last,),) = self._execute("SELECT COALESCE(MAX(number), 0) FROM jobs")
        job_id, *values, request, event = new
        self._execute(
            "INSERT INTO jobs (id, number, tenant, caller, idempotency_key, digest, priority, status, submitted_ms, "
            "deadline_ms, due_ms, owner, epoch, beat, attempts, lost, events, num_bytes, request, result) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, '', 0, 0, 0, 0, 0, ?, ?, ?)",
            (job_id, int(last) + 1, *values, _DUE_AT_ONCE, len(request), request, b""),
        )
        self._append(self._find("id = ?", job_id)[0], [event])
        return self._find("id = ?", job_id)[0]

    def _check_limits(self, new: NewJob, limits: JobsConfig) -> JobQueueFull | None:
        ((number, size),) = self._execute(f"SELECT COUNT(*), COALESCE(SUM(num_bytes), 0) FROM jobs WHERE {_LIVE}")  # noqa: S608
        if number >= limits.queue:
            return JobQueueFull("jobs", limits.queue)
        if size + len(new.request) > limits.queue_bytes:
            return JobQueueFull("bytes of jobs", limits.queue_bytes)
        ((own,),) = self._execute(f"SELECT COUNT(*) FROM jobs WHERE tenant = ? AND {_LIVE}", (new.tenant,))  # noqa: S608
        return JobQueueFull("jobs of one tenant", limits.tenant_queue) if own >= limits.tenant_queue else None

    def _append(self, row: JobRow, events: Sequence[bytes]) -> None:
        self._execute_each(
            "INSERT INTO job_events (job, number, raw) VALUES (?, ?, ?)",
            [(row.id, number, raw) for number, raw in enumerate(events, row.events + 1)],
        )
        counted = "events = events + ?, num_bytes = num_bytes + ?, beat = beat + 1"
        self._update(row.id, counted, len(events), sum(map(len, events)))

    def _end(self, job_id: str, status: str, now_ms: int, result: bytes) -> None:
        ended = "status = ?, ended_ms = ?, owner = '', num_bytes = num_bytes - LENGTH(request) + ?"
        self._update(job_id, f"{ended}, request = ?, result = ?", status, now_ms, len(result), b"", result)

    def _update(self, job_id: str, assignments: str, *values: object) -> None:
        self._execute(f"UPDATE jobs SET {assignments} WHERE id = ?", (*values, job_id))  # noqa: S608

    def _leases(self) -> list[JobLease]:
        rows = self._execute(f"SELECT id, epoch, beat FROM jobs WHERE owner <> '' AND {_LIVE}")  # noqa: S608
        return [JobLease(job_id, int(epoch), int(beat)) for job_id, epoch, beat in rows]

    def _find_one(self, condition: str, *values: object) -> JobRow | None:
        return next(iter(self._find(condition, *values)), None)

    def _find(self, condition: str, *values: object, columns: str = _SUMMARY) -> list[JobRow]:
        rows = self._execute(f"SELECT {columns} FROM jobs WHERE {condition}", values)  # noqa: S608
        found: list[Sequence[Any]] = [(*row[:-2], bytes(row[-2] or b""), bytes(row[-1])) for row in rows]
        return [JobRow(*each) for each in found]  # in SQLite, SUBSTR of an empty value is NULL


class KeepLimits(Protocol):
    """Limits on the rows that are kept: seconds since their end, number, and total size."""

    @property
    def keep(self) -> float: ...
    @property
    def kept(self) -> int: ...
    @property
    def kept_bytes(self) -> int: ...


class EndedJob(NamedTuple):
    id: str
    tenant: str
    ended_ms: int
    num_bytes: int


def find_expired_jobs(ended: Iterable[EndedJob], limits: KeepLimits, now_ms: int) -> Iterator[str]:
    """Yield the ids of ended jobs to delete, so that the rest are within the limits. `ended` is sorted oldest first."""
    kept: dict[str, deque[EndedJob]] = {}
    for job in ended:
        if job.ended_ms <= now_ms - round(limits.keep * 1000):
            yield job.id
        else:
            kept.setdefault(job.tenant, deque()).append(job)
    yield from _evict(kept, lambda job: 1, limits.kept)
    yield from _evict(kept, lambda job: job.num_bytes, limits.kept_bytes)


def _evict(kept: dict[str, deque[EndedJob]], weigh: Callable[[EndedJob], int], most: int) -> Iterator[str]:
    """Yield ids of jobs to delete until the total weight is at most `most`: always the heaviest tenant's oldest job."""
    weights = {tenant: sum(map(weigh, jobs)) for tenant, jobs in kept.items()}
    total = sum(weights.values())
    while total > most:
        tenant = max(weights, key=lambda each: (weights[each], -kept[each][0].ended_ms, each))
        job = kept[tenant].popleft()
        total -= weigh(job)
        weights[tenant] -= weigh(job)
        if not kept[tenant]:
            del kept[tenant], weights[tenant]
        yield job.id
