"""Stores under test, and followers of their changes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from octet.config.ensemble import StoreConfig
from router.store.connection import DatabaseOpener
from router.store.migrations import MIGRATIONS, Migration
from router.store.rows import AuditRow, CountBucket, Document, StoreChanges
from router.store.store import Store, open_store, opener_for_url
from tests.patience import PATIENCE

ENSEMBLE = "test"
NOW = 1_700_000_000
"""The time of the wall clock of all stores."""


class Follower:
    """What a router knows: its own counts and the changes that were reported to it."""

    def __init__(self) -> None:
        self.documents: dict[tuple[str, str], Document] = {}
        self.sums: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.audit: list[AuditRow] = []
        self.seqs: list[int] = []
        self.troubles: list[str] = []
        self.num_whole = 0
        self.dips: list[CountBucket] = []

    def on_change(self, changes: StoreChanges) -> None:
        if changes.whole:
            self.num_whole += 1
            self.documents.clear()
            reported = {(bucket.series, bucket.key, bucket.start) for bucket in changes.buckets}
            self.dips += [
                CountBucket(*place, *sums) for place, sums in self.sums.items() if any(sums) and place not in reported
            ]
        self.seqs.append(changes.seq)
        for document in changes.documents:
            self.documents[document.kind, document.key] = document
        for bucket in changes.buckets:
            place = (bucket.series, bucket.key, bucket.start)
            good, bad = self.sums.get(place, (0, 0))
            if bucket.good < good or bucket.bad < bad:
                self.dips.append(bucket)
            self.sums[place] = (bucket.good, bucket.bad)
        self.audit += changes.audit

    def count(self, store: Store, bucket: CountBucket) -> None:
        good, bad = self.sums.get((bucket.series, bucket.key, bucket.start), (0, 0))
        self.sums[bucket.series, bucket.key, bucket.start] = (good + bucket.good, bad + bucket.bad)
        store.count(bucket)

    def bodies(self) -> dict[tuple[str, str], Any]:
        return {place: each.body for place, each in self.documents.items() if each.body is not None}


def make_store(
    url: str,
    *,
    ensemble: str = ENSEMBLE,
    wrap: Callable[[DatabaseOpener], DatabaseOpener] = lambda opener: opener,
    migrations: Sequence[Migration] = MIGRATIONS,
    wall: Callable[[], float] = lambda: float(NOW),
    **config: Any,
) -> Store:
    opener = wrap(opener_for_url(url, ensemble, None))
    return Store(opener, StoreConfig(url=url, **config), ensemble, migrations=migrations, wall=wall)


@asynccontextmanager
async def opened(url: str, follower: Follower | None = None, **options: Any) -> AsyncIterator[Store]:
    store = make_store(url, **options)
    if follower is not None:
        store.on_change = follower.on_change
        store.health.on_change = follower.troubles.append
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def production_store(url: str) -> Store:
    return open_store(StoreConfig(url=url), ENSEMBLE)


def audit_row(subject: str = "debug", why: str = "because") -> AuditRow:
    return AuditRow(0, NOW * 1000, "ann", why, "set", subject, "before", "after")


def counted(good: int, bad: int, key: str = "lane", start: int = NOW) -> CountBucket:
    return CountBucket("correctness", key, start, good, bad)


async def eventually(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        await asyncio.sleep(0.01)


async def eventually_returns(
    call: Callable[[], Awaitable[object]], expected: object, seconds: float = PATIENCE
) -> None:
    """Wait until the call returns the expected value."""
    end = time.monotonic() + seconds
    while (found := await call()) != expected:
        assert time.monotonic() < end, f"{found!r} instead of {expected!r}"
        await asyncio.sleep(0.02)
