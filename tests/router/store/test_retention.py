"""The number of stored rows is bounded, the newest rows stay, and closing the store writes its buffer."""

from typing import Any

import pytest

from octet.config.ensemble import StoreConfig
from router.store.rows import ComparisonRow, ReceiptRow
from router.store.sync import LONGEST_WINDOW
from tests.router.store.stores import NOW, audit_row, counted, eventually, eventually_returns, opened

LIMITS: dict[str, Any] = {"receipts": 50, "comparisons": 30, "audit": 1000}


async def test_the_oldest_rows_are_deleted_and_the_newest_stay(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.store.sync._PRUNE_SECONDS", 600.0)
    async with opened(url, **LIMITS) as store:
        for number in range(3000):
            store.keep_receipt(ReceiptRow(f"r{number}", NOW + number, b"raw"))
            store.keep_comparison(ComparisonRow(NOW + number, f"c{number}", b"raw"))
        store.count(counted(1, 0, start=NOW - LONGEST_WINDOW - 1))
        store.count(counted(1, 0, start=NOW - LONGEST_WINDOW))
        await eventually(lambda: store._held.is_empty)
        assert store._sync is not None
        store._sync._next_prune = 0.0

        async def kept() -> tuple[list[int], ReceiptRow | None]:
            return [row.at_ms - NOW async for row in store.comparisons(0)], await store.receipt("r2949")

        await eventually_returns(kept, (list(range(2970, 3000)), None))
        assert [await store.receipt(f"r{number}") is not None for number in (0, 2949, 2950, 2999)] == [
            *(False, False),
            *(True, True),
        ]
        assert [each.start for each in await store.buckets("correctness", 0)] == [NOW - LONGEST_WINDOW]


async def test_the_audit_is_bounded_and_deleted_documents_are_forgotten(url: str) -> None:
    now = float(NOW)
    async with opened(url, wall=lambda: now) as store:
        gone = await store.change("knob", "a", 0, {}, audit_row())
        await store.change("knob", "a", gone.version, None, audit_row())
        for _ in range(8):
            await store.change_all([], audit_row())
        store.reconfigure(StoreConfig(audit=5))
        now += LONGEST_WINDOW + 1
        assert store._sync is not None
        store._sync._next_prune = 0.0

        async def numbers() -> list[int]:
            return [row.number for row in await store.audit()]

        await eventually_returns(numbers, [10, 9, 8, 7, 6])
        assert [row.number for row in await store.audit(most=2, before=9)] == [8, 7]
        again = await store.change("knob", "a", 0, {}, audit_row())
        assert again.version > gone.version


async def test_closing_writes_the_buffer(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.store.sync._TICK_SECONDS", 0.0005)  # Sync rounds begin while rows are added.
    async with opened(shared_url) as store:
        for number in range(2500):
            store.count(counted(1, 0))
            store.keep_receipt(ReceiptRow(f"r{number}", NOW, b"raw"))
            store.keep_comparison(ComparisonRow(NOW, "c", b"raw"))
    async with opened(shared_url) as store:
        assert (await store.buckets("correctness", NOW))[0].good == 2500
        assert await store.receipt("r2499") is not None
        assert len([row async for row in store.comparisons(NOW)]) == 2500
        assert [row async for row in store.comparisons(NOW + 1)] == []


async def test_a_closed_store_accepts_counts_and_receipts(url: str) -> None:
    async with opened(url) as store:
        pass
    store.count(counted(1, 0))
    store.keep_receipt(ReceiptRow("r", NOW, b"raw"))
    await store.close()
