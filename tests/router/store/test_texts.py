"""Texts of comparisons are deleted on time and beyond their number; the comparisons stay."""

from math import inf, isfinite

import pytest

from octet.config.ensemble import StoreConfig
from router.store.rows import ComparisonRow
from router.store.store import Store
from tests.router.store.stores import NOW, eventually, opened

NOW_MS = NOW * 1000
KEEP = 100.0
LONG = 1e9


async def texts(store: Store) -> dict[str, str]:
    return {row.request_id: row.text.decode() async for row in store.comparisons(0)}


async def stored_texts(store: Store) -> int:
    """Count the texts in the table, whether or not they have expired."""
    found = "SELECT COUNT(*) FROM comparisons WHERE text IS NOT NULL"
    rows = await store._open_worker().run(lambda database: database.connection.execute(found))
    return int(rows[0][0])


async def prune(store: Store) -> int:
    """Prune until nothing is left to delete, and return the number of texts."""
    sync = store._sync
    assert sync is not None
    await eventually(lambda: isfinite(sync._next_prune))  # an order that comes while rows are pruned is lost
    sync._next_prune = 0.0
    await eventually(lambda: LONG <= sync._next_prune < inf)
    return await stored_texts(store)


async def test_texts_are_deleted_on_time_and_beyond_their_number(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.store.sync._PRUNE_SECONDS", LONG)
    monkeypatch.setattr("router.store.sync._PRUNE_ROWS", 2)
    now = float(NOW)
    async with opened(url, wall=lambda: now, texts=4, texts_keep=KEEP) as store:
        for number in range(8):
            text = b"" if number == 6 else b"text %d" % number
            store.keep_comparison(ComparisonRow(NOW_MS + 10_000 * number, f"c{number}", b"raw", text))
        await eventually(lambda: store._held.is_empty)
        assert await prune(store) == 4
        newest = {f"c{number}": "" for number in range(8)} | {f"c{n}": f"text {n}" for n in (3, 4, 5, 7)}
        assert await texts(store) == newest

        now = NOW + KEEP + 45  # c3 and c4 have expired, but are not deleted yet
        assert await texts(store) == newest | {"c3": "", "c4": ""}
        assert await stored_texts(store) == 4
        assert await prune(store) == 2

        store.reconfigure(StoreConfig(texts=0))
        assert await prune(store) == 0
        assert list(await texts(store)) == [f"c{number}" for number in range(8)], "the comparisons stay"
