"""The tables of jobs: every change is one transaction, and has one effect however often it is tried.

Whoever answers a job holds it under an epoch. Taking it, leaving it and taking it away raise the epoch; every write
names the one it was made under, and counts only while that is the job's own. So a job ends once, whoever comes late.
"""

from collections.abc import Sequence

from octet.store.connection import Row
from octet.store.database import Database
from octet.store.job_rows import Head, Holding, JobRoom, JobRow, KeyTaken, NewJob, NoRoom, Sight, Writing

_COLUMNS = (
    "id, number, tenant, caller, digest, priority, status, submitted_ms, deadline_ms, started_ms, ended_ms, epoch, "
    "attempts, lost, events, num_bytes, request, result"
)
_BRIEF = _COLUMNS.replace("request", "SUBSTR(request, 1, 0)")
"""Without what only whoever answers the job wants to know."""
_LIVE = "status IN ('queued', 'running')"
_FREE = f"owner = '' AND {_LIVE}"
_DUE = "due_ms <= ?"
_LATE = "deadline_ms <= ?"
_PAGE_ROWS = 256
_AT_ONCE = 0
"""Due by everybody's clock, however far those of two routers lie apart."""


class JobTable:
    """Blocking, on the store's thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.connection.execute

    def submit(self, new: NewJob, room: JobRoom) -> tuple[JobRow, bool] | NoRoom | KeyTaken:
        """The job, and whether it is new."""
        with self._database.writing():
            self._database.next_mark()
            there = self._one("id = ?", new.id)
            if there is not None:
                return there, True
            if new.idempotency_key is not None:
                there = self._one("tenant = ? AND idempotency_key = ?", new.tenant, new.idempotency_key)
            if there is not None:
                return (there, False) if there.digest == new.digest else KeyTaken()
            none = self._no_room(new, room)
            if none is not None:
                return none
            return self._insert(new), True

    def claim(self, owner: str, now_ms: int, *, late: bool = False) -> JobRow | None:
        """The next that anybody may take: of the tenant who has the fewest taken, the most urgent, the oldest; `late`:
        of those past their deadline. `owner` is new for every claim."""
        with self._database.writing():
            self._database.next_mark()
            mine = self._many("owner = ?", owner, columns=_COLUMNS)
            if mine:
                return mine[0]
            rows = self._execute(
                "SELECT j.id FROM jobs j LEFT JOIN (SELECT tenant, COUNT(*) AS taken FROM jobs "  # noqa: S608
                f"WHERE owner <> '' AND {_LIVE} GROUP BY tenant) t ON t.tenant = j.tenant WHERE j.{_FREE} "
                f"AND j.{_LATE if late else _DUE} ORDER BY COALESCE(t.taken, 0), j.priority DESC, j.number LIMIT 1",
                (now_ms,),
            )
            if not rows:
                return None
            self._execute(
                "UPDATE jobs SET owner = ?, epoch = epoch + 1, beat = beat + 1 WHERE id = ?", (owner, rows[0][0])
            )
            return self._many("id = ?", rows[0][0], columns=_COLUMNS)[0]

    def write(self, writing: Writing) -> bool:
        """False: the job is in other hands, has ended or is gone, and nothing was written."""
        with self._database.writing():
            self._database.next_mark()
            row = self._one("id = ?", writing.id)
            events = [*writing.events, *([b""] if writing.ends is not None else [])]
            if row is None or row.epoch != writing.epoch:
                return False
            if events and row.events == writing.before + len(events):
                return True  # made before, when nobody heard of it
            if row.has_ended or row.events != writing.before:
                return False
            self._append(row, events)
            if writing.begins_ms is not None:
                self._execute(
                    "UPDATE jobs SET status = 'running', attempts = attempts + 1, "
                    "started_ms = COALESCE(started_ms, ?) WHERE id = ?",
                    (writing.begins_ms, writing.id),
                )
            if writing.ends is not None:
                self._end(writing.id, writing.ends.status, writing.ends.at_ms, writing.ends.result)
            return True

    def beat(self, mine: Sequence[tuple[str, int]]) -> set[str]:
        """Whoever holds these, by id and epoch, is there. Those that are still held."""
        with self._database.writing():
            self._database.next_mark()
            self._database.connection.execute_each(
                "UPDATE jobs SET beat = beat + 1 WHERE id = ? AND epoch = ? AND owner <> ''", mine
            )
            held = {(each.id, each.epoch) for each in self._held()}
        return {job_id for job_id, epoch in mine if (job_id, epoch) in held}

    def release(self, job_id: str, epoch: int, due_ms: int, *, lost: bool) -> None:
        """Anybody may take it, from `due_ms` on."""
        with self._database.writing():
            self._database.next_mark()
            self._execute(
                "UPDATE jobs SET owner = '', epoch = epoch + 1, due_ms = ?, lost = lost + ? "  # noqa: S608
                f"WHERE id = ? AND epoch = ? AND owner <> '' AND {_LIVE}",
                (due_ms, int(lost), job_id, epoch),
            )

    def take_away(self, stale: Sequence[Holding]) -> None:
        """From whoever is not there any more."""
        with self._database.writing():
            self._database.next_mark()
            self._database.connection.execute_each(
                "UPDATE jobs SET owner = '', epoch = epoch + 1, lost = lost + 1 "  # noqa: S608
                f"WHERE id = ? AND epoch = ? AND beat = ? AND owner <> '' AND {_LIVE}",
                [(each.id, each.epoch, each.beat) for each in stale],
            )

    def cancel(self, job_id: str, tenant: str, now_ms: int) -> JobRow | None:
        """The job as it is then: cancelled, or ended before."""
        with self._database.writing():
            self._database.next_mark()
            row = self._one("id = ? AND tenant = ?", job_id, tenant)
            if row is None or row.has_ended:
                return row
            self._append(row, [b""])
            self._execute("UPDATE jobs SET epoch = epoch + 1 WHERE id = ?", (job_id,))
            self._end(job_id, "cancelled", now_ms, b"")
            return self._one("id = ?", job_id)

    def look(self, now_ms: int, watched: Sequence[str]) -> Sight:
        waits, late = (
            bool(self._execute(f"SELECT 1 FROM jobs WHERE {_FREE} AND {when} LIMIT 1", (now_ms,)))  # noqa: S608
            for when in (_DUE, _LATE)
        )
        heads = [
            Head(job_id, int(events), status not in ("queued", "running"))
            for start in range(0, len(watched), _PAGE_ROWS)
            for job_id, events, status in self._heads(watched[start : start + _PAGE_ROWS])
        ]
        return Sight(waits, late, self._held(), heads)

    def get(self, job_id: str, tenant: str) -> JobRow | None:
        return self._one("id = ? AND tenant = ?", job_id, tenant)

    def newest(self, tenant: str, most: int, before: str) -> list[JobRow] | None:
        """Newest first; None where the tenant has no job `before`."""
        end = (1 << 63) - 1
        if before:
            row = self._one("id = ? AND tenant = ?", before, tenant)
            if row is None:
                return None
            end = row.number
        return self._many("tenant = ? AND number < ? ORDER BY number DESC LIMIT ?", tenant, end, most)

    def events(self, job_id: str, after: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """At least one, where there is one, and no more than fit."""
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

    def _insert(self, new: NewJob) -> JobRow:
        ((last,),) = self._execute("SELECT COALESCE(MAX(number), 0) FROM jobs")
        self._execute(
            "INSERT INTO jobs (id, number, tenant, caller, idempotency_key, digest, priority, status, submitted_ms, "
            "deadline_ms, due_ms, owner, epoch, beat, attempts, lost, events, num_bytes, request, result) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, '', 0, 0, 0, 0, 0, ?, ?, ?)",
            (
                *(new.id, int(last) + 1, new.tenant, new.caller, new.idempotency_key, new.digest),
                new.priority,
                *(new.submitted_ms, new.deadline_ms, _AT_ONCE, len(new.request), new.request, b""),
            ),
        )
        self._append(self._many("id = ?", new.id)[0], [new.event])
        return self._many("id = ?", new.id)[0]

    def _no_room(self, new: NewJob, room: JobRoom) -> NoRoom | None:
        ((most, size),) = self._execute(f"SELECT COUNT(*), COALESCE(SUM(num_bytes), 0) FROM jobs WHERE {_LIVE}")  # noqa: S608
        if most >= room.most:
            return NoRoom("jobs", room.most)
        if size + len(new.request) > room.most_bytes:
            return NoRoom("bytes of jobs", room.most_bytes)
        ((own,),) = self._execute(f"SELECT COUNT(*) FROM jobs WHERE tenant = ? AND {_LIVE}", (new.tenant,))  # noqa: S608
        return NoRoom("jobs of one tenant", room.most_of_tenant) if own >= room.most_of_tenant else None

    def _append(self, row: JobRow, events: Sequence[bytes]) -> None:
        self._database.connection.execute_each(
            "INSERT INTO job_events (job, number, raw) VALUES (?, ?, ?)",
            [(row.id, number, raw) for number, raw in enumerate(events, row.events + 1)],
        )
        self._execute(
            "UPDATE jobs SET events = events + ?, num_bytes = num_bytes + ?, beat = beat + 1 WHERE id = ?",
            (len(events), sum(map(len, events)), row.id),
        )

    def _end(self, job_id: str, status: str, now_ms: int, result: bytes) -> None:
        self._execute(
            "UPDATE jobs SET status = ?, ended_ms = ?, owner = '', num_bytes = num_bytes - LENGTH(request) + ?, "
            "request = ?, result = ? WHERE id = ?",
            (status, now_ms, len(result), b"", result, job_id),
        )

    def _held(self) -> list[Holding]:
        rows = self._execute(f"SELECT id, epoch, beat FROM jobs WHERE owner <> '' AND {_LIVE}")  # noqa: S608
        return [Holding(job_id, int(epoch), int(beat)) for job_id, epoch, beat in rows]

    def _heads(self, ids: Sequence[str]) -> list[Row]:
        marks = ", ".join("?" * len(ids))
        return self._execute(f"SELECT id, events, status FROM jobs WHERE id IN ({marks})", ids)  # noqa: S608

    def _one(self, condition: str, *values: object) -> JobRow | None:
        return next(iter(self._many(condition, *values)), None)

    def _many(self, condition: str, *values: object, columns: str = _BRIEF) -> list[JobRow]:
        rows = self._execute(f"SELECT {columns} FROM jobs WHERE {condition}", values)  # noqa: S608
        return list(map(_row, rows))


def _row(row: Row) -> JobRow:
    job_id, number, tenant, caller, digest, priority, status, submitted, deadline, started, ended, *rest = row
    *counts, request, result = rest
    epoch, attempts, lost, events, num_bytes = map(int, counts)
    return JobRow(
        id=job_id,
        number=int(number),
        tenant=tenant,
        caller=caller,
        digest=digest,
        priority=int(priority),
        status=status,
        submitted_ms=int(submitted),
        deadline_ms=int(deadline),
        started_ms=None if started is None else int(started),
        ended_ms=None if ended is None else int(ended),
        epoch=epoch,
        attempts=attempts,
        lost=lost,
        events=events,
        num_bytes=num_bytes,
        request=bytes(request or b""),  # of an empty one SQLite makes no part
        result=bytes(result),
    )
