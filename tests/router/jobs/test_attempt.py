"""A claimed job that is abandoned before its work begins."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from octet.clock import SystemClock
from octet.config.ensemble import JobsConfig
from router.jobs.attempt import JobAttempt, JobContext
from router.store.connection import SqliteMemory
from router.store.database import Database, StoreSnapshot
from router.store.jobs import JobTable, NewJob
from router.store.migrations import MIGRATIONS, migrate
from tests.patience import PATIENCE

T = TypeVar("T")
NEW = NewJob("job-1", "ann", "ann", None, "d", 2, 0, 60_000, b"", b"event")


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_abandoned_job_sends_no_request(is_lost: bool) -> None:
    connection = SqliteMemory().open()
    migrate(connection, "octet", "identity", MIGRATIONS)
    database = Database(connection, StoreSnapshot("octet", lambda: 0.0))
    table = JobTable(database)
    table.submit(NEW, JobsConfig())

    async def run(call: Callable[[JobTable], T], /) -> T:
        return call(table)

    server: Any = SimpleNamespace(clock=SystemClock(), wall_ms=lambda: 1)  # This server cannot answer a request.
    row = table.claim("me", 1)
    assert row is not None
    means = JobContext(run, server, JobsConfig(), lambda: 0.0, lambda _: None)
    attempt = JobAttempt(row, means)
    (attempt.lose if is_lost else attempt.abandon)()
    await asyncio.wait_for(attempt.run(), PATIENCE)
    next_row = table.claim("other", 1)
    assert (next_row is None) == is_lost
    assert next_row is None or (next_row.lost, next_row.attempts, next_row.events) == (0, 0, 1)
