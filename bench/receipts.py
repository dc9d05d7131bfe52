"""What it takes to list receipts among very many: the newest, those of a rare specialist, none at all."""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.measure import summary
from bench.record import Record
from octet.config.ensemble import StoreConfig
from octet.store import Labels, ReceiptQuery, ReceiptRow, Store, open_store
from octet.store.database import Database
from octet.store.held import Batch
from octet.store.history import History
from octet.store.url import opener_of

BENCH = "receipts"
_ENSEMBLE = "bench"
_SPECIALISTS = 8
_TENANTS = 50
_RARE = 20_000
"""One of so many is of the rare specialist, and one of a twentieth of that many has failed."""
_RAW = bytes(1500)
_BITE = 5000
_TURN = 0.001
QUERIES = {
    "newest 50": ReceiptQuery(50),
    "newest 50 of a rare specialist": ReceiptQuery(50, labels=Labels(specialist="rare")),
    "newest 50 of one tenant that failed": ReceiptQuery(50, labels=Labels("tenant-1", outcome="failed")),
    "none at all": ReceiptQuery(50, labels=Labels("tenant-1", "specialist-2", "refused")),
}


class Took(NamedTuple):
    """Seconds: until the answer, and the longest that the event loop did not turn meanwhile."""

    answer: float
    lag: float


def measure_receipts(url: str, num_receipts: int, runs: int) -> list[Record]:
    """In the database of that URL, which must be empty; without one, in a new SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(url or f"sqlite:{Path(folder) / 'bench.db'}", num_receipts, runs))


async def _measure(url: str, num_receipts: int, runs: int) -> list[Record]:
    """In turns, in an order that changes from round to round."""
    store = open_store(StoreConfig(url=url), _ENSEMBLE)
    await store.start()
    try:
        _fill(url, num_receipts)
        rounds = [await _round(store, number) for number in range(runs)]
    finally:
        await store.close()
    return [record for name in QUERIES for record in _records(name, [each[name] for each in rounds], num_receipts)]


def _records(name: str, took: Sequence[Took], num_receipts: int) -> Iterator[Record]:
    case = f"{num_receipts:,} receipts"
    yield summary([each.answer * 1e3 for each in took], BENCH, case, name, "ms", "octet")
    yield summary([each.lag * 1e3 for each in took], BENCH, case, f"{name}, event loop late by", "ms", "octet")


async def _round(store: Store, number: int) -> dict[str, Took]:
    order = Random(number).sample(list(QUERIES), len(QUERIES))
    return {name: await _time(store, QUERIES[name]) for name in order}


async def _time(store: Store, query: ReceiptQuery) -> Took:
    began = last = time.perf_counter()
    lag = 0.0
    asking = asyncio.ensure_future(store.records.newest(query))
    while not asking.done():
        await asyncio.wait({asking}, timeout=_TURN)
        now = time.perf_counter()
        lag, last = max(lag, now - last - _TURN), now
    await asking
    return Took(last - began, lag)


def _fill(url: str, num_receipts: int) -> None:
    connection = opener_of(url, _ENSEMBLE, None).open()
    database = Database(connection, History("bench", time.time))
    for number, start in enumerate(range(0, num_receipts, _BITE), 1):
        rows = [_row(each) for each in range(start, min(start + _BITE, num_receipts))]
        database.write(Batch(number, {}, rows, []), _ENSEMBLE, 0)
    connection.close()


def _row(number: int) -> ReceiptRow:
    tenant = f"tenant-{number % _TENANTS}"
    specialist = "rare" if number % _RARE == 1 else f"specialist-{number % _SPECIALISTS}"
    outcome = "failed" if number % (_RARE // 20) == 1 else "answered"
    return ReceiptRow(f"{tenant}:{number:032x}", 1_700_000_000_000 + number, _RAW, Labels(tenant, specialist, outcome))
