"""What it takes to list receipts among very many: the newest, those of a rare specialist, none at all.

python -m bench.receipts [STORE_URL] [--receipts N] [--rounds N]
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from octet.config.ensemble import StoreConfig
from octet.store import Labels, ReceiptQuery, ReceiptRow, Store, open_store
from octet.store.database import Database
from octet.store.held import Batch
from octet.store.history import History
from octet.store.url import opener_of

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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.receipts", description=__doc__)
    parser.add_argument("url", nargs="?", default="", help="of an empty database; default: a new SQLite file")
    parser.add_argument("--receipts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:{Path(folder) / 'bench.db'}"
        asyncio.run(_measure(url, options.receipts, options.rounds))


async def _measure(url: str, num_receipts: int, num_rounds: int) -> None:
    store = open_store(StoreConfig(url=url), _ENSEMBLE)
    await store.start()
    try:
        _fill(url, num_receipts)
        for name, query in QUERIES.items():
            took = [await _time(store, query) for _ in range(num_rounds)]
            answer, slowest = median(one.answer for one in took), max(one.answer for one in took)
            lag = max(one.lag for one in took)
            print(
                f"{name}: {1000 * answer:.1f} ms (slowest {1000 * slowest:.1f}); event loop late by {1000 * lag:.1f} ms"
            )
    finally:
        await store.close()


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


if __name__ == "__main__":
    main()
