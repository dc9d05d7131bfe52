"""PostgreSQL is killed, frozen or full, or refuses connections. No serving call waits for it, and no acknowledged
change is lost."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from threading import Thread, Timer

import pytest

from router.store.rows import ReceiptRow, StoreConflict, StoreUnavailable
from router.store.store import Store
from tests.patience import PATIENCE
from tests.router.store.conftest import programs_or_skip
from tests.router.store.postgres_server import PostgresServer, postgres_server
from tests.router.store.stores import NOW, Follower, audit_row, counted, eventually, opened


@pytest.fixture(scope="module")
def killable() -> Iterator[PostgresServer]:
    """Yield a server that only these tests use, because they kill it."""
    with postgres_server(programs_or_skip()) as server:
        yield server


class Load:
    """A router's load on its store, and the changes that were acknowledged."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.num_counted = 0
        self.acknowledged = -1
        """The number in the last document body that was acknowledged."""

    async def count(self) -> None:
        while True:
            self.store.count(counted(1, 0, self.name))
            self.store.keep_receipt(ReceiptRow(f"{self.name}{self.num_counted}", NOW + self.num_counted, b"raw"))
            self.num_counted += 1
            await asyncio.sleep(0.002)

    async def change(self) -> None:
        version, number = 0, 0
        while True:
            try:
                version = (await self.store.change("knob", self.name, version, {"n": number}, audit_row())).version
            except StoreUnavailable as gone:
                assert gone.certain
                await asyncio.sleep(0.02)
            else:
                self.acknowledged = number
                number += 1


async def serving_goes_on(*loads: Load) -> None:
    """Wait until every load has made many more calls. Calls that take a second fail at the limit of `eventually`, and a
    call that waits for the database does too, because that comes back only afterwards."""
    enough = [load.num_counted + 300 for load in loads]
    await eventually(lambda: all(load.num_counted >= each for load, each in zip(loads, enough, strict=True)))


def have_changed(loads: list[Load], times: int) -> bool:
    return all(load.acknowledged >= times for load in loads)


async def stop(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_database_killed_under_load_loses_no_acknowledged_change(
    killable: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SETTLE_SECONDS", "_TURN_SECONDS", "_ANSWER_SECONDS"):  # A busy machine restarts the server slowly.
        monkeypatch.setattr(f"router.store.worker.{name}", 600.0)
    url = killable.new_database()

    async def check(loads: list[Load]) -> None:
        async with opened(url) as store:
            numbers = [row.number for row in await store.audit(10_000)]
            assert numbers == list(range(len(numbers), 0, -1))
            documents = {each.key: (each.body or {})["n"] for each in await store.documents()}
            sums = {each.key: each.good for each in await store.buckets("correctness", NOW)}
            for load in loads:
                assert documents[load.name] in (load.acknowledged, load.acknowledged + 1)
                assert sums[load.name] == load.num_counted
                assert await store.receipt(f"{load.name}{load.num_counted - 1}") is not None

    followers = [Follower(), Follower()]
    async with opened(url, followers[0]) as one, opened(url, followers[1]) as two:
        loads = [Load(one, "one"), Load(two, "two")]
        tasks = [asyncio.create_task(each) for load in loads for each in (load.count(), load.change())]
        for enough in (5, 10):
            await eventually(partial(have_changed, loads, enough))
            await asyncio.to_thread(killable.kill)
            await eventually(lambda: one.trouble and two.trouble)
            await serving_goes_on(*loads)
            await asyncio.to_thread(killable.start)
            await eventually(lambda: not one.trouble and not two.trouble)
        await stop(*tasks)
        await eventually(lambda: one._held.is_empty and two._held.is_empty)
        assert [each.dips for each in followers] == [[], []]
    await check(loads)


async def test_a_frozen_database_is_reported_and_delays_no_call(
    killable: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts connections but does not answer. The store reports the outage, and writes its buffer
    afterwards."""
    url = killable.new_database()
    async with opened(url) as store:
        load = Load(store, "frozen")
        counting = asyncio.create_task(load.count())
        version = (await store.change("knob", "a", 0, {"n": 1}, audit_row())).version
        killable.freeze()
        bound = Timer(60.0, killable.thaw)  # ends a call that waits for the database
        bound.start()
        monkeypatch.setattr("router.store.sync._SILENCE_SECONDS", 1.0)
        try:
            with pytest.raises(StoreUnavailable) as gone:
                await store.change("knob", "a", version, {"n": 2}, audit_row())
            assert gone.value.certain
            await eventually(lambda: store.trouble)
            await serving_goes_on(load)
        finally:
            bound.cancel()
            killable.thaw()
            monkeypatch.setattr("router.store.sync._SILENCE_SECONDS", 60.0)
        await eventually(lambda: not store.trouble)
        await stop(counting)
        assert [each.body for each in await store.documents()] == [{"n": 1}]
        await store.change("knob", "a", version, {"n": 3}, audit_row())
        await eventually(lambda: store._held.is_empty)
        assert (await store.buckets("correctness", NOW))[0].good == load.num_counted


async def test_a_store_starts_without_its_database(killable: PostgresServer) -> None:
    url = killable.new_database()
    follower = Follower()
    killable.stop()
    try:
        async with opened(url, follower) as store:
            assert "cannot be reached" in store.trouble
            assert "not-a-secret" not in store.trouble
            store.count(counted(1, 0))
            with pytest.raises(StoreUnavailable):
                await store.change("knob", "a", 0, {}, audit_row())
            await asyncio.to_thread(killable.start)
            await eventually(lambda: not store.trouble)
            assert follower.num_whole == 1
            assert (await store.buckets("correctness", NOW))[0].good == 1
    finally:
        if killable.is_down:
            killable.start()


async def test_a_router_that_stops_in_a_transaction_does_not_stop_the_others(
    killable: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped router holds a row lock that every change needs. Changes are refused in time, and succeed once the
    server ends the session."""
    from router.store import postgres

    shorter = {"lock_timeout": "200", "idle_in_transaction_session_timeout": "3000"}
    monkeypatch.setattr(
        postgres, "_SETTINGS", {name: shorter.get(name, value) for name, value in postgres._SETTINGS.items()}
    )
    url = killable.new_database()
    async with opened(url) as store:
        stopped = postgres.PostgresUrl(url).open()
        stopped.begin()
        stopped.execute("UPDATE meta SET seq = seq + 1")
        with pytest.raises(StoreUnavailable, match="lock timeout") as gone:
            await store.change("knob", "a", 0, {}, audit_row())
        assert gone.value.certain
        while not await store.documents():
            with suppress(StoreUnavailable):
                await store.change("knob", "a", 0, {}, audit_row())
        stopped.close()


def test_a_call_that_waits_for_the_store_can_be_cancelled(killable: PostgresServer) -> None:
    """The call is cancelled from another thread while the server is silent."""
    from router.store.connection import StoreConnectionLost
    from router.store.postgres import PostgresUrl

    connection = PostgresUrl(killable.url()).open()
    connection.execute("SET statement_timeout = 0")
    outcomes: list[Exception] = []

    def wait() -> None:
        try:
            connection.execute("SELECT pg_sleep(600)")
        except StoreConnectionLost as error:
            outcomes.append(error)

    waiting = Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(0.1)
    killable.freeze()
    try:
        connection.abort()
        waiting.join(PATIENCE)
    finally:
        killable.thaw()
    assert len(outcomes) == 1
    connection.close()


async def test_a_lost_commit_that_is_still_under_way_is_waited_for(killable: PostgresServer) -> None:
    """A change waits for the row lock of the lost transaction, so it sees the outcome of that transaction."""
    import psycopg

    url = killable.new_database()
    async with opened(url) as store:
        with psycopg.connect(url) as lost:
            lost.execute("UPDATE octet.meta SET seq = seq + 1, audits = audits + 1")
            lost.execute("INSERT INTO octet.documents VALUES ('knob', 'a', 1, '{}', 1, 'me')")
            changing = asyncio.create_task(store.change("knob", "a", 0, {"n": 1}, audit_row()))
            await asyncio.sleep(0.3)
            assert not changing.done()
            lost.commit()
        with pytest.raises(StoreConflict):
            await changing


def test_a_password_never_appears_in_messages(killable: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    url = killable.url("nowhere").replace("not-a-secret", "s3cr3t")

    async def scenario() -> None:
        async with opened(url) as store:
            assert 'database "nowhere" does not exist' in store.trouble
            with pytest.raises(StoreUnavailable) as gone:
                await store.documents()
            assert "s3cr3t" not in f"{store.trouble} {gone.value} {gone.value!r} {gone.value.__cause__!r}"

    asyncio.run(scenario())
    assert "s3cr3t" not in caplog.text


async def test_a_role_without_write_permission_is_reported(killable: PostgresServer) -> None:
    url = killable.new_database()
    killable.execute("CREATE ROLE reader LOGIN")
    async with opened(url):
        pass
    async with opened(url.replace("postgres:not-a-secret@", "reader@")) as store:
        assert "permission denied" in store.trouble
