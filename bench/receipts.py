"""The cost of listing the newest of very many receipts: without a filter, and with filters that few or none match."""

import asyncio
import tempfile
import time
from pathlib import Path
from random import Random

from bench.timing import Board
from octet.config.ensemble import StoreConfig
from router.store.database import Database, StoreSnapshot
from router.store.rows import ReceiptLabels, ReceiptQuery, ReceiptRow, WriteBatch
from router.store.store import Store, open_store, opener_for_url
from simulation.results import BenchRecord

BENCH = "receipts"
_ENSEMBLE = "bench"
_SPECIALISTS = 8
_TENANTS = 50
_RARE = 20_000  # one receipt in this many belongs to the rare specialist
_RAW = bytes(1500)
_BITE = 5000
_TURN = 0.001
QUERIES = {
    "newest 50": ReceiptQuery(50),
    "newest 50 of a rare specialist": ReceiptQuery(50, labels=ReceiptLabels(specialist="rare")),
    "newest 50 of one tenant that failed": ReceiptQuery(50, labels=ReceiptLabels("tenant-1", outcome="failed")),
    "none at all": ReceiptQuery(50, labels=ReceiptLabels("tenant-1", "specialist-2", "refused")),
}


def measure_receipts(url: str, num_receipts: int, runs: int) -> list[BenchRecord]:
    board = Board(BENCH)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(url or f"sqlite:{Path(folder) / 'bench.db'}", num_receipts, runs, board))
    return board.records()


async def _measure(url: str, num_receipts: int, runs: int, board: Board) -> None:
    store = open_store(StoreConfig(url=url), _ENSEMBLE)
    await store.start()
    try:
        _fill(url, num_receipts)
        for number in range(runs):
            for name in Random(number).sample(list(QUERIES), len(QUERIES)):
                answer, lag = await _time(store, QUERIES[name])
                figures = ((name, "ms", answer * 1e3), (f"{name}, event loop late by", "ms", lag * 1e3))
                board.add(number, f"{num_receipts:,} receipts", "octet", figures)
    finally:
        await store.close()


async def _time(store: Store, query: ReceiptQuery) -> tuple[float, float]:
    """Return the seconds until the answer, and the longest time for which the event loop was blocked meanwhile."""
    began = last = time.perf_counter()
    lag = 0.0
    asking = asyncio.ensure_future(store.newest_receipts(query))
    while not asking.done():
        await asyncio.wait({asking}, timeout=_TURN)
        now = time.perf_counter()
        lag, last = max(lag, now - last - _TURN), now
    await asking
    return last - began, lag


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
