"""A connection fails at any statement, before or after the commit: no change is lost or made twice."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Event
from typing import Any

import pytest

from router.store.connection import (
    DatabaseConnection,
    DatabaseOpener,
    DatabaseRow,
    StoreCommitUnknown,
    StoreConnectionLost,
)
from router.store.rows import AuditRow, ReceiptRow, StoreConflict, StoreUnavailable
from router.store.store import Store
from tests.patience import PATIENCE
from tests.router.store.stores import NOW, Follower, audit_row, counted, eventually, opened


@dataclass
class Faults:
    """The share of calls that fail, by kind."""

    random: Random
    statements: float = 0.0
    commits_lost: float = 0.0
    """The share of commits that succeed but are reported as lost."""
    commits_failed: float = 0.0
    opens: float = 0.0
    seen: list[str] = field(default_factory=list)

    def maybe(self, share: float, kind: type[StoreConnectionLost]) -> None:
        if self.random.random() < share:
            self.seen.append(kind.__name__)
            raise kind("a planted fault")


class FaultyConnection:
    def __init__(self, connection: DatabaseConnection, faults: Faults) -> None:
        self._connection = connection
        self._faults = faults
        self.blob = connection.blob
        self.begin_reading = connection.begin_reading
        self.has_tables = connection.has_tables
        self.close = connection.close
        self.abort = connection.abort
        self.rollback = connection.rollback

    def begin(self) -> None:
        self._faults.maybe(self._faults.statements, StoreConnectionLost)
        self._connection.begin()

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
        self._faults.maybe(self._faults.statements, StoreConnectionLost)
        return self._connection.execute(sql, values)

    def execute_each(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        self._faults.maybe(self._faults.statements, StoreConnectionLost)
        self._connection.execute_each(sql, rows)

    def commit(self) -> None:
        self._faults.maybe(self._faults.commits_failed, StoreCommitUnknown)
        self._connection.commit()
        self._faults.maybe(self._faults.commits_lost, StoreCommitUnknown)


class FaultyOpener:
    def __init__(self, opener: DatabaseOpener, faults: Faults) -> None:
        self._opener = opener
        self._faults = faults
        self.name = opener.name

    def open(self) -> DatabaseConnection:
        self._faults.maybe(self._faults.opens, StoreConnectionLost)
        return FaultyConnection(self._opener.open(), self._faults)


async def change_until_made(store: Store, key: str, version: int, number: int) -> int:
    """Retry the change until it is made, and return its version. Every failure must report that nothing was changed."""
    while True:
        try:
            return (await store.change("knob", key, version, {"n": number}, audit_row(key))).version
        except StoreUnavailable as gone:
            assert gone.certain


@pytest.fixture
def patient_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call wait ten minutes for the store: on a busy machine, the usual seconds may pass before it is settled."""
    for name in ("_SETTLE_SECONDS", "_TURN_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(f"router.store.worker.{name}", 600.0)


@pytest.mark.usefixtures("patient_worker")
@pytest.mark.parametrize("seed", range(2))
async def test_no_change_is_lost_or_made_twice(shared_url: str, seed: int) -> None:
    faults = Faults(Random(seed), statements=0.02, commits_lost=0.2, commits_failed=0.2, opens=0.1)
    num_changes = 12

    async def write(store: Store, key: str) -> None:
        version = 0
        for number in range(num_changes):
            store.count(counted(1, 1, key))
            store.keep_receipt(ReceiptRow(f"{key}{number}", NOW, b"raw"))
            version = await change_until_made(store, key, version, number)

    follower = Follower()
    wrap = lambda opener: FaultyOpener(opener, faults)  # noqa: E731
    async with opened(shared_url, follower, wrap=wrap) as store:
        await asyncio.gather(*(write(store, key) for key in ("a", "b")))
        faults.statements = faults.commits_lost = faults.commits_failed = faults.opens = 0.0
        await eventually(lambda: store._held.is_empty)
    assert {"StoreConnectionLost", "StoreCommitUnknown"} <= set(faults.seen)
    async with opened(shared_url) as store:
        rows = list(await store.audit())[::-1]
        assert [row.number for row in rows] == list(range(1, 2 * num_changes + 1))
        assert [row.subject for row in rows].count("a") == num_changes
        buckets = {each.key: (each.good, each.bad) for each in await store.buckets("correctness", NOW)}
        assert buckets == {"a": (num_changes, num_changes), "b": (num_changes, num_changes)}
        assert await store.receipt(f"b{num_changes - 1}") is not None
    assert follower.dips == []


@pytest.mark.usefixtures("patient_worker")
async def test_a_commit_reported_as_lost_is_looked_up_and_not_repeated(shared_url: str) -> None:
    """The change is not repeated, because it would conflict with itself if the first commit succeeded."""
    faults = Faults(Random(0))
    async with opened(shared_url, wrap=lambda opener: FaultyOpener(opener, faults)) as store:
        faults.commits_lost = 1.0
        changing = asyncio.create_task(store.change("knob", "a", 0, {"n": 1}, audit_row()))
        await eventually(lambda: "StoreCommitUnknown" in faults.seen)
        faults.commits_lost = 0.0
        made = await changing
        assert [row.number for row in await store.audit()] == [1]
        with pytest.raises(StoreConflict) as stale:
            await store.change("knob", "a", 0, {"n": 2}, audit_row())
        assert stale.value.current == made


@pytest.mark.usefixtures("patient_worker")
async def test_trouble_is_reported_while_a_lost_commit_is_looked_up(shared_url: str) -> None:
    """The outage would end too late for the change if it ended only after the look-up."""
    faults = Faults(Random(0))
    async with opened(shared_url, wrap=lambda opener: FaultyOpener(opener, faults)) as store:
        await store.documents()  # The start-up tasks are done.
        faults.commits_lost, faults.opens = 1.0, 1.0
        changing = asyncio.create_task(store.change("knob", "a", 0, {"n": 1}, audit_row()))
        await eventually(lambda: "planted" in store.trouble)
        assert not changing.done()
        faults.commits_lost = faults.opens = 0.0
        assert (await changing).body == {"n": 1}
        await eventually(lambda: not store.trouble)


async def test_an_outcome_that_stays_unknown_is_reported_as_unknown(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.store.worker._SETTLE_SECONDS", 0.5)
    faults = Faults(Random(0))
    async with opened(shared_url, wrap=lambda opener: FaultyOpener(opener, faults)) as store:
        await store.documents()  # The start-up tasks are done.
        faults.commits_lost, faults.opens = 1.0, 1.0
        with pytest.raises(StoreUnavailable, match="it is unknown whether the change was committed") as gone:
            await store.change("knob", "a", 0, {"n": 1}, audit_row())
        assert not gone.value.certain
        await eventually(lambda: "planted" in store.trouble)
        faults.commits_lost = faults.opens = 0.0
        await eventually(lambda: not store.trouble)
        assert [each.body for each in await store.documents()] == [{"n": 1}]


async def test_a_failing_change_callback_stops_no_later_report(url: str, caplog: pytest.LogCaptureFixture) -> None:
    follower = Follower()
    async with opened(url, follower) as store:

        def fail(_: object) -> None:
            raise ZeroDivisionError

        store.on_change = fail
        await store.change("knob", "a", 0, {}, audit_row())
        await eventually(lambda: "the callback for store changes failed" in caplog.text)
        store.on_change = follower.on_change
        await store.change("knob", "b", 0, {}, audit_row())
        await eventually(lambda: ("knob", "b") in follower.documents)


async def test_a_database_outage_is_logged_and_blocks_no_caller(
    shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(Random(0), opens=1.0)
    follower = Follower()
    options = {"wrap": lambda opener: FaultyOpener(opener, faults), "queue": 100}
    async with opened(shared_url, follower, **options) as store:
        assert "planted fault" in store.trouble
        with pytest.raises(StoreUnavailable, match="planted fault") as gone:
            await store.change("knob", "a", 0, {}, audit_row())
        assert gone.value.certain
        for number in range(500):
            follower.count(store, counted(1, 0))
            store.keep_receipt(ReceiptRow(f"r{number}", NOW + number, b"raw"))
        held = store.counters()
        assert (held.held_counts, held.dropped_counts) == (500, 0)
        assert held.held_receipts + held.dropped_receipts == 500
        assert held.held_receipts >= 100
        await eventually(lambda: "the store has dropped" in caplog.text)
        assert await store.receipt("r499") is not None
        follower.count(store, counted(7, 0, "later"))  # This count is not part of the batch that waits.
        faults.opens = 0.0
        await eventually(lambda: store._held.is_empty)
        assert follower.troubles[-1] == ""
        assert await store.receipt("r499") is not None
        assert {each.key: each.good for each in await store.buckets("correctness", NOW)} == {
            "lane": 500,
            "later": 7,
        }
        assert (await store.receipt("r0")) is None
        assert (follower.num_whole, follower.dips) == (1, [])
    assert "the store does not answer, requests are still served" in caplog.text
    assert "the store answers again" in caplog.text


async def test_the_audit_row_and_the_documents_are_written_together(shared_url: str) -> None:
    """If a change fails between the two writes, neither takes effect."""

    class FailingAudit(FaultyConnection):
        def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
            if sql.startswith("INSERT INTO audit") and "failing" in values:
                raise StoreConnectionLost("a planted fault")
            return super().execute(sql, values)

    class FailingAuditOpener(FaultyOpener):
        def open(self) -> DatabaseConnection:
            return FailingAudit(self._opener.open(), self._faults)

    async with opened(shared_url, wrap=lambda opener: FailingAuditOpener(opener, Faults(Random(0)))) as store:
        row: AuditRow = audit_row("failing")
        with pytest.raises(StoreUnavailable):
            await store.change("knob", "a", 0, {}, row)
        assert (await store.documents(), await store.audit()) == ([], [])


class StuckConnection(FaultyConnection):
    """A connection that waits at a statement and cannot be interrupted."""

    at = ""
    is_waiting = Event()
    free = Event()

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
        if StuckConnection.at and sql.startswith(StuckConnection.at):
            StuckConnection.is_waiting.set()
            StuckConnection.free.wait(PATIENCE)
        return super().execute(sql, values)


class StuckOpener(FaultyOpener):
    def open(self) -> DatabaseConnection:
        return StuckConnection(self._opener.open(), self._faults)


@contextmanager
def stuck_at(statement: str, turn: float, answer: float) -> Iterator[None]:
    """Block stores at this statement. `turn` and `answer` are the seconds for which a call waits for its turn and for
    its answer."""
    StuckConnection.free.clear()
    StuckConnection.is_waiting.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("router.store.worker._TURN_SECONDS", turn)
        patch.setattr("router.store.worker._ANSWER_SECONDS", answer)
        StuckConnection.at = statement
        try:
            yield
        finally:
            StuckConnection.at = ""
            StuckConnection.free.set()


STUCK: dict[str, Any] = {"wrap": lambda opener: StuckOpener(opener, Faults(Random(0)))}


async def test_a_change_that_waited_too_long_is_never_made(shared_url: str) -> None:
    async with opened(shared_url, **STUCK) as store:
        with stuck_at("SELECT identity", turn=0.3, answer=0.6):  # Every sync round runs this statement.
            await eventually(StuckConnection.is_waiting.is_set)
            with pytest.raises(StoreUnavailable, match="did not answer within") as gone:
                await store.change("knob", "a", 0, {}, audit_row())
            assert gone.value.certain
            abandoned = asyncio.create_task(store.change("knob", "b", 0, {}, audit_row()))
            await asyncio.sleep(0.05)
            abandoned.cancel()
            await asyncio.sleep(0)
        await eventually(lambda: not store.trouble)
        assert (await store.documents(), await store.audit()) == ([], [])


async def test_a_change_that_is_stuck_half_way_has_an_unknown_outcome(shared_url: str) -> None:
    follower = Follower()
    async with opened(shared_url, follower, **STUCK) as store:
        with stuck_at("INSERT INTO audit", turn=0.3, answer=0.6):
            changing = asyncio.create_task(store.change("knob", "a", 0, {"n": 1}, audit_row()))
            with pytest.raises(StoreUnavailable) as gone:
                await changing
            assert StuckConnection.is_waiting.is_set() and not gone.value.certain
        await eventually(lambda: follower.bodies() == {("knob", "a"): {"n": 1}})
