"""Comparisons that are read from a real store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from octet.clock import SystemClock
from octet.config.ensemble import StoreConfig
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.receipt_log import ReceiptCache, ReceiptLog
from router.store.rows import ComparisonRow, StoreUnavailable
from router.store.store import open_store
from tests.patience import PATIENCE

NO_CACHE = ReceiptCache(SystemClock(), max_receipts=0, seconds=0)


async def test_stored_comparisons_are_read_in_order(tmp_path: Path) -> None:
    kept = [wire.Comparison(request_id=str(number), at_unix_ms=number) for number in range(1, 1500)]
    store = open_store(StoreConfig(url=f"sqlite:{tmp_path / 'store.db'}"), "octet")
    await store.start()
    try:
        for one in kept:
            store.keep_comparison(ComparisonRow(one.at_unix_ms, one.request_id, one.SerializeToString()))
        archive = ReceiptLog(NO_CACHE, store)
        found: list[wire.Comparison] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < len(kept):
                found = [wire.Comparison.FromString(raw) async for raw in archive.comparisons(0)]
                await asyncio.sleep(0.05)
        assert found == kept
        later = [wire.Comparison.FromString(raw) async for raw in archive.comparisons(1000)]
        assert later == kept[999:]
    finally:
        await store.close()


class BrokenComparisons:
    async def comparisons(self, since_ms: int) -> AsyncIterator[ComparisonRow]:
        if since_ms == 0:
            raise StoreUnavailable("the database is gone")
        yield ComparisonRow(0, "x", b"")


def test_unavailable_store_is_a_typed_refusal() -> None:
    async def read() -> None:
        async for _ in ReceiptLog(NO_CACHE, BrokenComparisons()).comparisons(0):  # type: ignore[arg-type]
            raise AssertionError("no comparison was stored")

    with pytest.raises(Refusal) as caught:
        asyncio.run(read())
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    assert caught.value.error.reason == error_pb2.ERROR_REASON_STORE_UNAVAILABLE
