"""Failures of a SQLite file."""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from router.store.connection import DatabaseConnection, DatabaseOpener, DatabaseRow, SqliteConnection
from router.store.rows import Document, ReceiptRow, StoreUnavailable
from tests.patience import PATIENCE
from tests.router.store.stores import NOW, audit_row, counted, eventually, opened, production_store


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_default_files_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0)
    try:

        async def scenario() -> None:
            store = production_store("")
            await store.start()
            await store.change("knob", "a", 0, {}, audit_row())
            folder = tmp_path / "state" / "octet"
            assert mode(folder) == 0o700
            names = ("test.db", "test.db-wal", "test.db-shm")
            assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(names, 0o600)
            await store.close()

        asyncio.run(scenario())
    finally:
        os.umask(before)


def test_without_xdg_state_home_the_file_is_in_the_users_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    async def scenario() -> None:
        store = production_store("")
        await store.start()
        await store.close()

    asyncio.run(scenario())
    assert (tmp_path / ".local" / "state" / "octet" / "test.db").is_file()


async def test_a_folder_that_cannot_be_created_is_reported_with_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with opened(f"sqlite:{tmp_path / 'file' / 'state.db'}") as store:
        assert "set store.url to" in store.trouble
        store.count(counted(1, 0))


def test_a_file_that_is_not_a_database_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"precious notes, and no database" * 100)
    before = path.read_bytes()

    async def scenario() -> None:
        async with opened(f"sqlite:{path}") as store:
            assert "the file is damaged or not a database (file is not a database)" in store.trouble
            assert f"move {path} away" in store.trouble and "folder that can be written" not in store.trouble
            store.count(counted(1, 0))
            with pytest.raises(StoreUnavailable, match="not a database"):
                await store.change("knob", "a", 0, {}, audit_row())
            assert path.read_bytes() == before
            path.rename(tmp_path / "notes")
            await eventually(lambda: not store.trouble)
            await eventually(lambda: store.counters().held_counts == 0)

    asyncio.run(scenario())
    assert (tmp_path / "notes").read_bytes() == before


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def fill() -> None:
        async with opened(f"sqlite:{path}") as store:
            for number in range(50):
                store.keep_receipt(ReceiptRow(f"r{number}", NOW, bytes(1000)))
            await store.change("knob", "a", 0, {}, audit_row())

    async def scenario() -> None:
        async with opened(f"sqlite:{path}") as store:
            assert "the file is damaged" in store.trouble and "malformed" in store.trouble
            assert "restore a backup" in store.trouble

    asyncio.run(fill())
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    path.write_bytes(raw)
    asyncio.run(scenario())
    assert path.read_bytes() == raw


def test_a_file_that_was_moved_away_gets_no_more_changes(tmp_path: Path) -> None:
    path = tmp_path / "state.db"

    async def scenario() -> list[Document]:
        async with opened(f"sqlite:{path}") as store:
            await store.change("knob", "a", 0, {}, audit_row())
            for file in tmp_path.glob("state.db*"):
                shutil.move(file, tmp_path / f"old-{file.name}")
            await store.change("knob", "b", 0, {}, audit_row())
        async with opened(f"sqlite:{path}") as store:
            return list(await store.documents())

    assert [each.key for each in asyncio.run(scenario())] == ["a", "b"]
    old = sqlite3.connect(tmp_path / "old-state.db")
    assert old.execute("SELECT key FROM documents").fetchall() == [("a",)]
    old.close()


async def test_a_database_locked_by_another_process_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.store.connection.LOCK_SECONDS", 0.2)
    path = tmp_path / "state.db"
    async with opened(f"sqlite:{path}") as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        store.count(counted(1, 0))
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.change("knob", "a", 0, {}, audit_row())
        await eventually(lambda: "locked" in store.trouble)
        other.close()
        await eventually(lambda: not store.trouble and store.counters().held_counts == 0)


class SmallDatabase:
    """A database that allows only a few pages."""

    most_pages = 44

    def __init__(self, opener: DatabaseOpener) -> None:
        self._opener = opener
        self.name = opener.name

    def open(self) -> DatabaseConnection:
        connection = self._opener.open()
        assert isinstance(connection, SqliteConnection)
        connection.execute(f"PRAGMA max_page_count = {self.most_pages}")
        return SmallConnection(connection._raw, connection._path)


class SmallConnection(SqliteConnection):
    def execute(self, sql: str, values: Sequence[object] = ()) -> list[DatabaseRow]:
        if sql == "BEGIN IMMEDIATE":
            super().execute(f"PRAGMA max_page_count = {SmallDatabase.most_pages}")
        return super().execute(sql, values)


async def test_a_full_disk_is_reported_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(f"sqlite:{tmp_path / 'state.db'}", wrap=SmallDatabase) as store:
        version = (await store.change("knob", "a", 0, {"n": 1}, audit_row())).version
        for number in range(100):
            store.count(counted(1, 0))
            store.keep_receipt(ReceiptRow(f"r{number}", NOW, bytes(4000)))
        await eventually(lambda: "full" in store.trouble)
        with pytest.raises(StoreUnavailable, match="full") as gone:
            await store.change("knob", "a", version, {"n": "x" * 60_000}, audit_row())
        assert gone.value.certain
        assert [each.body for each in await store.documents()] == [{"n": 1}]
        monkeypatch.setattr(SmallDatabase, "most_pages", 100_000)
        await eventually(lambda: not store.trouble and store._held.is_empty)
        assert (await store.buckets("correctness", NOW))[0].good == 100
        assert await store.receipt("r99") is not None


READ_ONLY = """
import asyncio, os, sys
path, user = sys.argv[1], int(sys.argv[2])
from tests.router.store.stores import audit_row, counted, opened
from router.store.rows import (StoreUnavailable)
async def main():
    async with opened(f"sqlite:{path}") as store:
        store.count(counted(1, 0))
        try:
            await store.change("knob", "a", 0, {}, audit_row())
        except StoreUnavailable as gone:
            print(gone)
if user:
    os.setgid(user), os.setuid(user)
asyncio.run(main())
"""


def test_a_read_only_file_is_reported(tmp_path: Path) -> None:
    """The store runs in a process without root rights, because root can write any file."""
    import tempfile

    async def fill() -> None:
        async with opened(f"sqlite:{path}"):
            pass

    folder = Path(tempfile.mkdtemp(prefix="octet-ro-"))
    try:
        path = folder / "state.db"
        asyncio.run(fill())
        path.chmod(0o444)
        folder.chmod(0o555)
        user = "65534" if os.geteuid() == 0 else "0"
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, path, user], capture_output=True, text=True, timeout=PATIENCE
        )
        assert "readonly database" in done.stdout, done.stderr
        assert "the store does not answer" in done.stderr
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
