"""Stored responses are found by their own tenant until they expire, and are kept within all limits."""

from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import StoreConfig
from router.store.connection import SqliteMemory
from router.store.database import Database, StoreSnapshot
from router.store.migrations import MIGRATIONS, migrate
from router.store.responses import ResponseRow, ResponseTable, prune_responses
from tests.router.store.stores import NOW, eventually_returns, make_store, opened

LIMITS = StoreConfig(responses=4, responses_bytes=1 << 20, responses_keep=10.0)
NOW_MS = NOW * 1000


def make_row(name: str, tenant: str = "a", age_ms: int = 0, size: int = 2) -> ResponseRow:
    return ResponseRow(name, tenant, NOW_MS - age_ms, "s", b"i", b"r" * (size - 1))


async def test_rows_are_shared_found_and_deleted(shared_url: str) -> None:
    async with opened(shared_url) as one, opened(shared_url) as two:
        row = make_row("resp_1")
        for _ in range(2):  # a write may be repeated after a lost connection
            await one.responses(lambda table: table.put(row))
        assert await two.responses(lambda table: table.get("resp_1", "a", 0)) == row
        assert await two.responses(lambda table: table.find(["resp_1", "resp_2"], "a", 0, 10)) == [b"r"]
        assert await two.responses(lambda table: table.find(["resp_1"], "a", 0, 0)) is None
        for tenant, since in (("b", 0), ("a", NOW_MS)):
            assert await two.responses(lambda table, t=tenant, s=since: table.get("resp_1", t, s)) is None  # type: ignore[misc]
            assert await two.responses(lambda table, t=tenant, s=since: table.find(["resp_1"], t, s, 9)) == []  # type: ignore[misc]
        assert not await two.responses(lambda table: table.delete("resp_1", "b", 0))
        assert await two.responses(lambda table: table.delete("resp_1", "a", 0))
        assert not await one.responses(lambda table: table.delete("resp_1", "a", 0))


async def test_synchronisation_prunes_responses() -> None:
    async with opened("memory", responses_keep=10.0) as store:
        await store.responses(lambda table: table.put(make_row("old", age_ms=20_000)))
        await store.responses(lambda table: table.put(make_row("new")))
        assert store._sync is not None
        store._sync._next_prune = 0.0
        await eventually_returns(lambda: store.responses(lambda table: table.get("old", "a", 0)), None)
        assert await store.responses(lambda table: table.get("new", "a", 0)) is not None


drawn = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 20_000), st.integers(2, 400_000)), min_size=1, max_size=12
)


@given(drawn)
def test_kept_responses_are_the_newest_within_the_limits(rows: list[tuple[str, int, int]]) -> None:
    connection = SqliteMemory().open()
    migrate(connection, "test", "identity", MIGRATIONS)
    table = ResponseTable(Database(connection, StoreSnapshot("memory", lambda: NOW)))
    made = [make_row(f"r{index:02}", *row) for index, row in enumerate(rows)]
    for row in made:
        table.put(row)
    while prune_responses(connection, LIMITS, NOW_MS):
        pass
    kept = [row for row in made if table.get(row.id, row.tenant, 0) is not None]
    assert len(kept) <= LIMITS.responses and sum(row.num_bytes for row in kept) <= LIMITS.responses_bytes
    young = [row for row in made if row.created_ms > NOW_MS - 10_000]
    assert set(kept) <= set(young)
    if len(young) <= LIMITS.responses and sum(row.num_bytes for row in young) <= LIMITS.responses_bytes:
        assert kept == young
    for tenant in "ab":
        own = sorted((row for row in young if row.tenant == tenant), key=lambda row: (row.created_ms, row.id))
        mine = [row for row in own if row in kept]
        assert mine == own[len(own) - len(mine) :], "a tenant loses its oldest responses"
    connection.close()


def test_memory_store_keeps_fewer_bytes() -> None:
    assert make_store("memory", responses_bytes=1 << 40).limits.responses_bytes == 64 << 20
    assert make_store("sqlite:x.db", responses_bytes=1 << 40).limits.responses_bytes == 1 << 40
