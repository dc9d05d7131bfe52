"""Migrations between program versions."""

import pytest

from router.store.migrations import MIGRATIONS, Migration
from router.store.rows import Document, StoreUnavailable
from tests.router.store.stores import audit_row, opened

NEXT: Migration = (
    "ALTER TABLE documents ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'",
    "CREATE TABLE more (number BIGINT PRIMARY KEY, raw {blob})",
)
BROKEN: Migration = ("CREATE TABLE half (number BIGINT)", "CREATE NONSENSE")


async def keep(url: str) -> Document:
    async with opened(url) as store:
        return await store.change("knob", "a", 0, {"n": 1}, audit_row())


async def test_a_new_program_migrates_old_tables(shared_url: str) -> None:
    kept = await keep(shared_url)
    for _ in range(2):
        async with opened(shared_url, migrations=(*MIGRATIONS, NEXT)) as store:
            assert store.trouble == ""
            assert list(await store.documents()) == [kept]


async def test_an_old_program_does_not_change_newer_tables(shared_url: str) -> None:
    kept = await keep(shared_url)
    async with opened(shared_url, migrations=(*MIGRATIONS, NEXT)):
        pass
    async with opened(shared_url) as store:
        newer, known = len(MIGRATIONS) + 1, len(MIGRATIONS)
        reported = f"the schema has version {newer}, but this program supports at most version {known}: update octet"
        assert store.trouble.endswith(reported)
        with pytest.raises(StoreUnavailable, match="update octet"):
            await store.change("knob", "a", kept.version, {}, audit_row())
    async with opened(shared_url, migrations=(*MIGRATIONS, NEXT)) as store:
        assert list(await store.documents()) == [kept]


async def test_a_failed_migration_is_rolled_back(shared_url: str) -> None:
    kept = await keep(shared_url)
    async with opened(shared_url, migrations=(*MIGRATIONS, BROKEN)) as store:
        assert "NONSENSE" in store.trouble
    async with opened(shared_url, migrations=(*MIGRATIONS, BROKEN[:1])) as store:
        assert store.trouble == ""  # The first half of the failed migration was rolled back.
        assert list(await store.documents()) == [kept]


async def test_an_ensemble_does_not_open_anothers_database(shared_url: str) -> None:
    await keep(shared_url)
    async with opened(shared_url, ensemble="other") as store:
        assert "the database belongs to ensemble 'test'; 'other' needs its own" in store.trouble


async def test_all_documents_of_a_replaced_database_are_reported(shared_url: str) -> None:
    """If the database is replaced, for example with a backup, followers get all documents of the new database."""
    from router.store.store import opener_for_url
    from tests.router.store.stores import Follower, eventually

    follower = Follower()
    async with opened(shared_url, follower) as store:
        await store.change("knob", "a", 0, {}, audit_row())
        await eventually(lambda: ("knob", "a") in follower.documents)
        connection = opener_for_url(shared_url, "test", None).open()
        connection.begin()
        connection.execute("DELETE FROM documents")
        connection.execute("UPDATE meta SET identity = 'another'")
        connection.commit()
        connection.close()
        await eventually(lambda: follower.num_whole == 2)
        assert follower.documents == {}
