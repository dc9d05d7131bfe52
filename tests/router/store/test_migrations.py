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


async def test_a_new_program_brings_old_tables_up_to_date(shared_url: str) -> None:
    kept = await keep(shared_url)
    for _ in range(2):
        async with opened(shared_url, migrations=(*MIGRATIONS, NEXT)) as store:
            assert store.trouble == ""
            assert list(await store.documents()) == [kept]


async def test_an_old_program_leaves_new_tables_alone(shared_url: str) -> None:
    kept = await keep(shared_url)
    async with opened(shared_url, migrations=(*MIGRATIONS, NEXT)):
        pass
    async with opened(shared_url) as store:
        newer, known = len(MIGRATIONS) + 1, len(MIGRATIONS)
        reported = f"its schema has version {newer}, and this program supports up to {known}: update octet"
        assert store.trouble.endswith(reported)
        with pytest.raises(StoreUnavailable, match="update octet"):
            await store.change("knob", "a", kept.version, {}, audit_row())
    async with opened(shared_url, migrations=(*MIGRATIONS, NEXT)) as store:
        assert list(await store.documents()) == [kept]


async def test_a_migration_that_fails_leaves_nothing(shared_url: str) -> None:
    kept = await keep(shared_url)
    async with opened(shared_url, migrations=(*MIGRATIONS, BROKEN)) as store:
        assert "NONSENSE" in store.trouble
    async with opened(shared_url, migrations=(*MIGRATIONS, BROKEN[:1])) as store:
        assert store.trouble == ""  # its first half was not there
        assert list(await store.documents()) == [kept]


async def test_an_ensemble_does_not_open_anothers_database(shared_url: str) -> None:
    await keep(shared_url)
    async with opened(shared_url, ensemble="other") as store:
        assert "belongs to the ensemble 'test'; 'other' needs its own database" in store.trouble


async def test_a_replaced_database_is_reported_whole(shared_url: str) -> None:
    """As after a restore of a backup."""
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
