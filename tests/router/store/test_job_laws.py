"""Laws of jobs, checked on random histories in which routers pause, die and return late, and commits are lost. A job
ends exactly once, its events have no gaps, and a reported event never changes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octet.config.ensemble import JobsConfig
from router.store.connection import DatabaseConnection, SqliteMemory, StoreCommitUnknown, StoreConnectionLost
from router.store.database import Database, StoreSnapshot
from router.store.jobs import (
    ENDED_STATUSES,
    IdempotencyKeyTaken,
    JobEnding,
    JobLease,
    JobQueueFull,
    JobRow,
    JobTable,
    JobWrite,
    NewJob,
)
from router.store.migrations import MIGRATIONS, migrate

T = TypeVar("T")
ROOM = JobsConfig(queue=6, tenant_queue=4, queue_bytes=60)
NUM_HOLDERS = 5
KEEP_MS = 5
TIMEOUT_MS = 60
FATES = st.sampled_from(["well", "well", "lost before", "lost after"])
"""What happens to a commit."""


class FlakyConnection:
    """A connection whose next commit may be lost, before or after it is made."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        self.fate = "well"

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def commit(self) -> None:
        fate, self.fate = self.fate, "well"
        if fate == "lost before":
            self._connection.rollback()
            raise StoreConnectionLost("gone")
        self._connection.commit()
        if fate == "lost after":
            raise StoreCommitUnknown("gone")


@dataclass
class ExpectedJob:
    """The expected state of a job."""

    tenant: str
    digest: str
    due: int
    events: list[bytes]
    status: str = "queued"
    epoch: int = 0
    held: bool = False
    attempts: int = 0
    ended: int = 0
    deadline: int = 0

    def is_free(self, now: int, *, late: bool) -> bool:
        return self.status not in ENDED_STATUSES and not self.held and (self.deadline if late else self.due) <= now


@dataclass
class JobClaim:
    """A router's claim on a job. The claim may have been lost meanwhile."""

    row: JobRow
    written: int
    last: JobWrite | None = None
    results: list[bool] = field(default_factory=list)


class JobHistories(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        connection = SqliteMemory().open()
        migrate(connection, "test", "identity", MIGRATIONS)
        self.flaky = FlakyConnection(connection)
        self.database = Database(self.flaky, StoreSnapshot("test", lambda: 0.0))  # type: ignore[arg-type]
        self.now = 1000
        self.known: dict[str, ExpectedJob] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.holders: list[JobClaim] = []
        self.number = 0
        for tenant in "aab":
            self.submit("well", tenant, "", b"x")
        for _ in range(2):
            self.claim("well", late=False)

    def do(self, fate: str, do: Callable[[JobTable], T]) -> T:
        """Return the result of the call. Like the store's thread, repeat the call if the connection is lost."""
        self.flaky.fate = fate
        for _ in range(2):
            try:
                return do(JobTable(self.database))
            except StoreConnectionLost:
                continue
            finally:
                self.flaky.fate = "well"
        raise AssertionError("the second attempt must not fail")

    def live(self) -> list[ExpectedJob]:
        return [job for job in self.known.values() if job.status not in ENDED_STATUSES]

    @rule(
        fate=FATES,
        tenant=st.sampled_from("ab"),
        key=st.sampled_from(["", "", "k"]),
        body=st.sampled_from([b"x", b"y" * 9]),
    )
    def submit(self, fate: str, tenant: str, key: str, body: bytes) -> None:
        self.number += 1
        digest = body.decode()
        new = NewJob(
            f"job{self.number}", tenant, "me", key or None, digest, 2, self.now, self.now + TIMEOUT_MS, body, b"queued"
        )
        found = self.do(fate, lambda table: table.submit(new, ROOM))
        before = self.keys.get((tenant, key)) if key else None
        size = sum(len(b"".join(job.events)) + len(job.digest) for job in self.live())
        if before in self.known:
            if self.known[before].digest != digest:
                assert isinstance(found, IdempotencyKeyTaken)
                return
            assert isinstance(found, tuple)
            assert (found[0].id, found[1]) == (before, False)
        elif len(self.live()) >= ROOM.queue or size + len(body) > ROOM.queue_bytes:
            assert isinstance(found, JobQueueFull)
        elif sum(job.tenant == tenant for job in self.live()) >= ROOM.tenant_queue:
            assert found == JobQueueFull("jobs of one tenant", ROOM.tenant_queue)
        else:
            assert isinstance(found, tuple)
            assert (found[0].id, found[0].status, found[1]) == (new.id, "queued", True)
            self.known[new.id] = ExpectedJob(tenant, digest, self.now, [b"queued"], deadline=self.now + TIMEOUT_MS)
            if key:
                self.keys[tenant, key] = new.id

    @rule(fate=FATES, late=st.sampled_from([False, False, True]))
    def claim(self, fate: str, late: bool) -> None:
        self.number += 1
        owner = f"owner{self.number}"
        row = self.do(fate, lambda table: table.claim(owner, self.now, late=late))
        free = [name for name, job in self.known.items() if job.is_free(self.now, late=late)]
        sight = JobTable(self.database).scan(self.now, ())
        if row is None:
            assert not (sight.has_late if late else sight.has_due)
        assert (row is None) == (not free)
        if row is not None:
            taken = {name: sum(job.held and job.tenant == name for job in self.live()) for name in "ab"}
            assert row.id in free
            assert taken[row.tenant] == min(taken[self.known[name].tenant] for name in free)
            job = self.known[row.id]
            job.epoch += 1
            job.held = True
            assert row.epoch == job.epoch and row.request == job.digest.encode()
            self.holders = [*self.holders, JobClaim(row, row.events)][-NUM_HOLDERS:]

    def draw_holder(self, data: st.DataObject) -> JobClaim:
        """Draw a holder. Current holders are drawn more often than former ones."""
        holders = [holder for holder in self.holders if self.may_write(holder)]
        return data.draw(st.sampled_from([*holders, *holders, *self.holders]))

    def may_write(self, holder: JobClaim) -> bool:
        job = self.known.get(holder.row.id)
        return job is not None and job.held and job.epoch == holder.row.epoch and job.status not in ENDED_STATUSES

    @precondition(lambda self: self.holders)
    @rule(
        data=st.data(),
        fate=FATES,
        begins=st.booleans(),
        num=st.integers(0, 2),
        end=st.sampled_from(["", "", "", "", *ENDED_STATUSES]),
    )
    def write(self, data: st.DataObject, fate: str, begins: bool, num: int, end: str) -> None:
        holder = self.draw_holder(data)
        self.number += 1
        events = [b"%d" % self.number] * (num + begins)
        ends = JobEnding(end, self.now, b"!") if end in ("done", "failed", "cancelled") else None  # type: ignore[arg-type]
        writing = JobWrite(holder.row.id, holder.row.epoch, holder.written, events, self.now if begins else None, ends)
        expected = self.may_write(holder)
        made = self.do(fate, lambda table: table.write(writing))
        assert made == expected or (made and not events and not ends)
        if expected:
            job = self.known[holder.row.id]
            job.events += [*events, *([b""] if ends else [])]
            holder.written = len(job.events)
            if begins:
                job.status, job.attempts = "running", job.attempts + 1
            if ends:
                job.status, job.held, job.ended = ends.status, False, self.now
        holder.last = writing if expected and (events or ends) else None

    @precondition(lambda self: any(holder.last for holder in self.holders))
    @rule(data=st.data())
    def write_once_more(self, data: st.DataObject) -> None:
        """Repeat a write with an unknown outcome. It must take effect at most once."""
        holder = data.draw(st.sampled_from([holder for holder in self.holders if holder.last]))
        assert holder.last is not None
        job = self.known.get(holder.row.id)
        made = self.do("well", lambda table: table.write(holder.last))  # type: ignore[arg-type]
        assert made == (job is not None and job.epoch == holder.row.epoch)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), fate=FATES, after=st.integers(0, 30))
    def release(self, data: st.DataObject, fate: str, after: int) -> None:
        holder = self.draw_holder(data)
        expected = self.may_write(holder)
        self.do(fate, lambda table: table.release(holder.row.id, holder.row.epoch, self.now + after, lost=True))
        if expected:
            job = self.known[holder.row.id]
            job.held, job.due, job.epoch = False, self.now + after, job.epoch + 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), fate=FATES)
    def beat(self, data: st.DataObject, fate: str) -> None:
        holders = data.draw(st.lists(st.sampled_from(self.holders), unique_by=id))
        held = self.do(fate, lambda table: table.renew([(holder.row.id, holder.row.epoch) for holder in holders]))
        assert held == {holder.row.id for holder in holders if self.may_write(holder)}

    @precondition(lambda self: any(job.held for job in self.known.values()))
    @rule(data=st.data(), fate=FATES, old=st.booleans())
    def take_away(self, data: st.DataObject, fate: str, old: bool) -> None:
        """Revoke a lease that a scan has found. If `old` is true, its owner renewed it after the scan, so it must not
        be revoked."""
        held = self.do("well", lambda table: table.scan(self.now, ())).leases
        assert {each.id for each in held} == {name for name, job in self.known.items() if job.held}
        each = data.draw(st.sampled_from(sorted(held, key=lambda each: each.id)))
        stale = JobLease(each.id, each.epoch, each.beat - old)
        self.do(fate, lambda table: table.revoke([stale]))
        if not old:
            job = self.known[each.id]
            job.held, job.epoch = False, job.epoch + 1

    @precondition(lambda self: self.known)
    @rule(data=st.data(), fate=FATES, stranger=st.booleans())
    def cancel(self, data: st.DataObject, fate: str, stranger: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        job = self.known[name]
        row = self.do(fate, lambda table: table.cancel(name, "another" if stranger else job.tenant, self.now))
        if stranger:
            assert row is None
            return
        if job.status not in ENDED_STATUSES:
            job.status, job.held, job.epoch, job.ended = "cancelled", False, job.epoch + 1, self.now
            job.events.append(b"")
        assert row is not None and row.status == job.status

    @rule(passed=st.integers(1, 30))
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(fate=FATES)
    def prune(self, fate: str) -> None:
        limits = JobsConfig(keep=KEEP_MS / 1000, kept=1000, kept_bytes=1 << 20)
        self.do(fate, lambda table: table.prune(limits, self.now))
        old = [
            name for name, job in self.known.items() if job.status in ENDED_STATUSES and job.ended <= self.now - KEEP_MS
        ]
        for name in old:
            del self.known[name]

    @invariant()
    def everything_is_as_it_was_reported(self) -> None:
        if not hasattr(self, "database"):
            return
        table = JobTable(self.database)
        for name, job in self.known.items():
            row = table.get(name, job.tenant)
            assert row is not None and table.get(name, "another") is None
            assert (row.status, row.epoch, row.attempts) == (job.status, job.epoch, job.attempts)
            assert table.events(name, 0, 1 << 20) == list(enumerate(job.events, 1))
            assert row.events == len(job.events)
            assert [raw for raw in job.events if not raw] == ([b""] if job.status in ENDED_STATUSES else [])
            assert job.status not in ENDED_STATUSES or not job.events[-1]
        ((left,),) = self.database.connection.execute("SELECT COUNT(*) FROM job_events")
        assert left == sum(len(job.events) for job in self.known.values())


JobHistories.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestJobHistories = JobHistories.TestCase
