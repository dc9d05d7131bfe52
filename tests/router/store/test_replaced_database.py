"""The database is removed, emptied or replaced while routers run: no acknowledged change is lost silently."""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.store.connection import SqliteMemory
from router.store.database import Database, StoreSnapshot, reconcile_database
from router.store.migrations import MIGRATIONS, migrate
from router.store.rows import AuditRow, DocumentEdit
from router.store.store import opener_for_url
from tests.router.store.stores import NOW, Follower, audit_row, counted, eventually, opened

HELD = {("breaker", "shell"): {"hold": "open"}, ("knob", "review.priority_floor"): {}}
PLACE = ("correctness", "lane", NOW)


def files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}*"))


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:"))


def remove(url: str) -> None:
    if url.startswith("sqlite:"):
        for file in files(path_of(url)):
            file.unlink()
    else:
        execute(url, "DROP SCHEMA octet CASCADE")


def empty(url: str) -> None:
    """Delete all rows in place."""
    tables = ("documents", "audit", "buckets", "receipts", "comparisons", "writers")
    zero = "UPDATE meta SET seq = 0, audits = 0, receipts = 0, comparisons = 0"
    execute(url, *(f"DELETE FROM {table}" for table in tables), zero)  # noqa: S608


def execute(url: str, *statements: str) -> None:
    connection = opener_for_url(url, "test", None).open()
    connection.begin()
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def replacement_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.ERROR and "removed or replaced" in each.getMessage()
    ]


async def order(store: Any) -> int:
    """Make a few changes. Return the version of the breaker's document."""
    held = await store.change("breaker", "shell", 0, {"hold": "open"}, audit_row("shell"))
    gone = await store.change("knob", "gone", 0, {"n": 1}, audit_row())
    await store.change("knob", "gone", gone.version, None, audit_row())
    await store.change("knob", "review.priority_floor", 0, {}, audit_row())
    return int(held.version)


@pytest.mark.parametrize("lose", [remove, empty])
def test_an_emptied_database_gets_acknowledged_changes_back(
    shared_url: str, lose: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        followers = [Follower(), Follower()]
        async with opened(shared_url, followers[0]) as one, opened(shared_url, followers[1]) as two:
            version = await order(one)
            followers[1].count(two, counted(7, 3))
            await eventually(lambda: all(each.bodies() == HELD for each in followers))
            await eventually(lambda: all(each.sums.get(PLACE) == (7, 3) for each in followers))
            lose(shared_url)
            await eventually(lambda: all("restored" in [row.what for row in each.audit] for each in followers))
            await eventually(lambda: all(each.bodies() == HELD for each in followers))
            (restored,) = [row for row in await one.audit() if row.what == "restored"]
            assert (restored.number, restored.who, restored.subject) == (5, "octet", "store")
            assert restored.why.startswith("the database was empty: ")
            assert {each.key: each.body for each in await two.documents()} == {key[1]: HELD[key] for key in HELD}
            assert [(each.good, each.bad) for each in await two.buckets("correctness", NOW)] == [(7, 3)]
            followers[1].count(two, counted(1, 0))
            await eventually(lambda: all(each.sums.get(PLACE) == (8, 3) for each in followers))
            await two.change("breaker", "shell", version, {"hold": "closed"}, audit_row("shell"))
            assert [row.number for row in await one.audit()] == [6, 5], "audit numbers must continue"
            assert [each.dips for each in followers] == [[], []]
            assert (one.trouble, two.trouble) == ("", "")

    asyncio.run(scenario())
    assert 1 <= len(replacement_errors(caplog)) <= 2, "each router may log the replacement at most once"
    assert "written back" in caplog.text


async def test_a_change_right_after_a_loss_restores_the_database_first(shared_url: str) -> None:

    async def order_one(store: Any) -> None:
        await store.change("knob", f"k{len(await store.documents())}", 0, {}, audit_row())

    async with opened(shared_url) as store:
        for _ in range(5):
            await order_one(store)
            remove(shared_url)
            assert "restored" in [row.what for row in await store.audit()], "a read must restore the database too"
            remove(shared_url)
            await order_one(store)
        assert len(await store.documents()) == 10


def test_a_backup_put_in_place_is_taken_over_unchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"

    async def scenario() -> None:
        followers = [Follower(), Follower()]
        url = f"sqlite:{path}"
        async with opened(url, followers[0]) as one, opened(url, followers[1]):
            await one.change("knob", "old", 0, {"n": 1}, audit_row())
            with closing(sqlite3.connect(path)) as live:
                live.execute("VACUUM INTO ?", (str(copy),))
            for number in range(5):
                await one.change("knob", f"later{number}", 0, {"n": 2}, audit_row())
            await eventually(lambda: all(len(each.bodies()) == 6 for each in followers))
            remove_beside(path)
            copy.replace(path)
            await eventually(lambda: all(each.bodies() == {("knob", "old"): {"n": 1}} for each in followers))
            assert "taken_over" in [row.what for row in await one.audit()]
            await eventually(lambda: all("taken_over" in [row.what for row in each.audit] for each in followers))

    def remove_beside(path: Path) -> None:
        for file in files(path)[1:]:
            file.unlink()

    asyncio.run(scenario())
    assert len(replacement_errors(caplog)) == 2 and all(
        "different database" in each for each in replacement_errors(caplog)
    )


async def test_a_history_rolled_back_in_place_is_taken_over_unchanged(shared_url: str) -> None:
    """A rollback is noticed even though the sequence number soon reaches its old value again."""
    followers = [Follower(), Follower()]
    async with opened(shared_url, followers[0]) as one, opened(shared_url, followers[1]):
        await one.change("knob", "a", 0, {"n": 1}, audit_row())
        await one.change("knob", "b", 0, {"n": 1}, audit_row())
        await eventually(lambda: all(len(each.bodies()) == 2 for each in followers))
        back = ("DELETE FROM audit WHERE number = 2", "UPDATE meta SET seq = 1, audits = 1")
        execute(shared_url, "DELETE FROM documents WHERE key = 'b'", *back)
        await eventually(lambda: all(each.bodies() == {("knob", "a"): {"n": 1}} for each in followers))
        assert [row.what for row in await one.audit()][-2:] == ["taken_over", "set"]


async def test_a_backup_restored_into_the_open_file_is_taken_over_unchanged(tmp_path: Path) -> None:
    """`sqlite3 NAME.db ".restore copy.db"` restores a backup in this way."""
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"
    follower = Follower()
    async with opened(f"sqlite:{path}", follower) as store:
        await store.change("knob", "old", 0, {"n": 1}, audit_row())
        with closing(sqlite3.connect(path)) as live:
            live.execute("VACUUM INTO ?", (str(copy),))
        await store.change("knob", "later", 0, {"n": 2}, audit_row())
        await eventually(lambda: len(follower.bodies()) == 2)
        with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(copy)) as backup:
            backup.backup(live)
        await eventually(lambda: follower.bodies() == {("knob", "old"): {"n": 1}})
        await store.change("knob", "new", 0, {}, audit_row())
        assert [row.what for row in await store.audit()] == ["set", "taken_over", "set"]


def test_only_the_file_itself_is_removed(tmp_path: Path) -> None:
    """The database is restored if its file is removed while SQLite's -wal and -shm files stay."""
    path = tmp_path / "state.db"

    async def scenario() -> None:
        followers = [Follower(), Follower()]
        async with opened(f"sqlite:{path}", followers[0]) as one, opened(f"sqlite:{path}", followers[1]) as two:
            await order(one)
            await eventually(lambda: all(each.bodies() == HELD for each in followers))
            path.unlink()
            await eventually(lambda: all("restored" in [row.what for row in each.audit] for each in followers))
            await two.change("knob", "later", 0, {}, audit_row())
            await eventually(lambda: all(each.bodies() == {**HELD, ("knob", "later"): {}} for each in followers))

    asyncio.run(scenario())
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_moving_a_damaged_file_away_while_routers_run_loses_no_change(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    follower = Follower()
    async with opened(f"sqlite:{path}", follower) as store:
        await order(store)
        await eventually(lambda: follower.bodies() == HELD)
        remove(f"sqlite:{path}")
        path.write_bytes(b"no database" * 1000)
        await eventually(lambda: "the file is damaged" in store.trouble)
        shutil.move(path, tmp_path / "damaged")
        await eventually(lambda: not store.trouble)
        assert {each.key for each in await store.documents()} == {"shell", "review.priority_floor"}


async def test_a_database_without_its_meta_row_is_reported_with_advice(shared_url: str) -> None:
    async with opened(shared_url) as store:
        execute(shared_url, "DELETE FROM meta")
        await eventually(lambda: "table meta has no row: restore a backup" in store.trouble)
    async with opened(shared_url) as store:
        assert "table meta has no row" in store.trouble


def fresh(identity: str) -> Any:
    connection = SqliteMemory().open()
    migrate(connection, "test", identity, MIGRATIONS)
    return connection


def make(database: Database, key: str, number: int | None) -> None:
    (version,) = [each.version for each in database.documents() if each.key == key] or (0,)
    body = None if number is None else {"n": number}
    row = AuditRow(0, NOW, "ann", "because", "set", key, "", "")
    database.change(f"{database.position()}", [DocumentEdit("knob", key, version, body)], row)


def bodies(database: Database) -> dict[str, Any]:
    return {each.key: each.body for each in database.documents()}


CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=8)

READ = st.integers(0, 8)


@settings(max_examples=60, deadline=None)
@given(CHANGES, st.tuples(READ, READ), st.none() | st.sampled_from("abc"))
@example([("a", number) for number in range(6)], (0, 6), "a")
def test_two_concurrent_restores_lose_nothing(
    changes: list[tuple[str, int | None]], have_read: tuple[int, int], between: str | None
) -> None:
    """The router that knows fewer changes may restore first. A change between the two restores must not be lost."""
    old = fresh("old")
    states: list[dict[str, Any]] = [{}]
    writer = Database(old, StoreSnapshot("", lambda: NOW))
    histories = [StoreSnapshot("one", lambda: NOW), StoreSnapshot("two", lambda: NOW)]
    read = [min(each, len(changes)) for each in have_read]
    for number in range(len(changes) + 1):
        for history, up_to in zip(histories, read, strict=True):
            if up_to == number:
                Database(old, history).changes_after(None if history.position is None else history.position, 0)
        if number < len(changes):
            make(writer, *changes[number])
            states.append(bodies(writer))
            for history, up_to in zip(histories, read, strict=True):
                if up_to > number:
                    Database(old, history).changes_after(history.position, 0)
    new = fresh("new")
    first, second = (Database(new, history) for history in histories)
    reconcile_database(first)
    assert bodies(first) == states[read[0]]
    wanted = dict(states[max(read)])
    if between is not None:
        make(first, between, 99)
        wanted[between] = {"n": 99}
    mark = first.position()
    reconcile_database(second)
    reconcile_database(first)
    assert bodies(first) == bodies(second) == wanted
    reported = first.changes_after(mark, 0)[1]
    assert {**states[read[0]], **({between: {"n": 99}} if between else {}), **_reported(reported)} == {
        **wanted, **{key: None for key in _reported(reported) if key not in wanted}
    }, "a third router must get the added rows"  # fmt: skip
    old.close()
    new.close()


def _reported(changes: Any) -> dict[str, Any]:
    return {} if changes is None else {each.key: each.body for each in changes.documents}


def test_a_snapshot_is_bounded() -> None:
    history = StoreSnapshot("", lambda: NOW)
    connection = fresh("old")
    database = Database(connection, history)
    for number in range(200):
        start = NOW + number * 100
        history.update(
            database.position(), (), [counted(1, 0, str(key), start) for key in range(100)], since=start - 1000
        )
    assert len(history.sums) < 5000 and ("correctness", "0", start) in history.sums
    connection.close()
