"""What it takes to list receipts among very many: the newest, those of a rare specialist, none at all."""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from octet.config.ensemble import StoreConfig
from router.store.database import Database, StoreSnapshot
from router.store.rows import ReceiptLabels, ReceiptQuery, ReceiptRow, WriteBatch
from router.store.store import Store, open_store, opener_for_url
from simulation.results import BenchRecord, summary

BENCH = "receipts"
_ENSEMBLE = "bench"
_SPECIALISTS = 8
_TENANTS = 50
_RARE = 20_000  # one receipt in so many is of the rare specialist
_RAW = bytes(1500)
_BITE = 5000
_TURN = 0.001
QUERIES = {
    "newest 50": ReceiptQuery(50),
    "newest 50 of a rare specialist": ReceiptQuery(50, labels=ReceiptLabels(specialist="rare")),
    "newest 50 of one tenant that failed": ReceiptQuery(50, labels=ReceiptLabels("tenant-1", outcome="failed")),
    "none at all": ReceiptQuery(50, labels=ReceiptLabels("tenant-1", "specialist-2", "refused")),
}


class QueryTime(NamedTuple):
    answer: float
    lag: float


def measure_receipts(url: str, num_receipts: int, runs: int) -> list[BenchRecord]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(url or f"sqlite:{Path(folder) / 'bench.db'}", num_receipts, runs))


async def _measure(url: str, num_receipts: int, runs: int) -> list[BenchRecord]:
    store = open_store(StoreConfig(url=url), _ENSEMBLE)
    await store.start()
    try:
        _fill(url, num_receipts)
        rounds = [await _round(store, number) for number in range(runs)]
    finally:
        await store.close()
    return [record for name in QUERIES for record in _records(name, [each[name] for each in rounds], num_receipts)]


def _records(name: str, took: Sequence[QueryTime], num_receipts: int) -> Iterator[BenchRecord]:
    case = f"{num_receipts:,} receipts"
    yield summary([each.answer * 1e3 for each in took], BENCH, case, name, "ms", "octet")
    yield summary([each.lag * 1e3 for each in took], BENCH, case, f"{name}, event loop late by", "ms", "octet")


async def _round(store: Store, number: int) -> dict[str, QueryTime]:
    order = Random(number).sample(list(QUERIES), len(QUERIES))
    return {name: await _time(store, QUERIES[name]) for name in order}


async def _time(store: Store, query: ReceiptQuery) -> QueryTime:
    began = last = time.perf_counter()
    lag = 0.0
    asking = asyncio.ensure_future(store.receipts.newest(query))
    while not asking.done():
        await asyncio.wait({asking}, timeout=_TURN)
        now = time.perf_counter()
        lag, last = max(lag, now - last - _TURN), now
    await asking
    return QueryTime(last - began, lag)


def _fill(url: str, num_receipts: int) -> None:
    connection = opener_for_url(url, _ENSEMBLE, None).open()
    database = Database(connection, StoreSnapshot("bench", time.time))
    for number, start in enumerate(range(0, num_receipts, _BITE), 1):
        rows = [_row(each) for each in range(start, min(start + _BITE, num_receipts))]
        database.write(WriteBatch(number, {}, rows, []), _ENSEMBLE, 0)
    connection.close()


def _row(number: int) -> ReceiptRow:
    tenant = f"tenant-{number % _TENANTS}"
    specialist = "rare" if number % _RARE == 1 else f"specialist-{number % _SPECIALISTS}"
    outcome = "failed" if number % (_RARE // 20) == 1 else "answered"
    return ReceiptRow(
        f"{tenant}:{number:032x}", 1_700_000_000_000 + number, _RAW, ReceiptLabels(tenant, specialist, outcome)
    )
