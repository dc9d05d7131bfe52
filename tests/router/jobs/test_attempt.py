"""A job in a router's hands that is told to end before its work has begun."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from octet.clock import SystemClock
from octet.config.ensemble import JobsConfig
from octet.store.database import Database
from octet.store.history import History
from octet.store.job_rows import JobRoom, NewJob
from octet.store.job_table import JobTable
from octet.store.jobs import JobStore
from octet.store.migrations import MIGRATIONS, migrate
from octet.store.sqlite import SqliteMemory
from router.jobs.attempt import Attempt, Means

T = TypeVar("T")
NEW = NewJob("job-1", "ann", "ann", None, "d", 2, 0, 60_000, b"", b"told")


@pytest.mark.parametrize("is_lost", [False, True])
def test_nothing_is_asked_for_a_job_that_was_given_up_before(is_lost: bool) -> None:
    connection = SqliteMemory().open()
    migrate(connection, "house", "identity", MIGRATIONS)
    database = Database(connection, History("house", lambda: 0.0))
    table = JobTable(database)
    table.submit(NEW, JobRoom(9, 9, 999))

    async def ask(do: Callable[[Database], T], /) -> T:
        return do(database)

    async def answer(*_: Any) -> None:
        raise AssertionError("it was given up")

    async def story() -> None:
        row = table.claim("me", 1)
        assert row is not None
        means = Means(JobStore(ask), answer, JobsConfig(), SystemClock(), lambda: 1, lambda: 0.0, lambda _: None)
        attempt = Attempt(row, means)
        (attempt.lose if is_lost else attempt.give_up)()
        await asyncio.wait_for(attempt.run(), 5)
        next_row = table.claim("other", 1)
        assert (next_row is None) == is_lost
        assert next_row is None or (next_row.lost, next_row.attempts, next_row.events) == (0, 0, 1)

    asyncio.run(story())
