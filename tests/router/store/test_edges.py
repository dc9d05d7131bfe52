"""Edge cases: rows that a database rejects, too many calls, durability."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from octet.clock import ManualClock
from router.store.connection import DatabaseConnection, DatabaseOpener, SqliteFile, StoreCommitUnknown, StoreRejected
from router.store.rows import ReceiptRow, StoreUnavailable
from router.store.worker import StoreWorker
from tests.router.store.stores import NOW, counted, eventually, opened

MOST_CALLS = 256


class RejectingOpener:
    """Opens connections that reject receipts whose id starts with `bad`."""

    def __init__(self, opener: DatabaseOpener) -> None:
        self._opener = opener
        self.name = opener.name

    def open(self) -> DatabaseConnection:
        connection = self._opener.open()
        write = connection.execute_each

        def execute_each(sql: str, rows: Iterable[Sequence[object]]) -> None:
            rows = list(rows)
            if "INTO receipts" in sql and any(str(row[1]).startswith("bad") for row in rows):
                raise StoreRejected("no such receipt")
            write(sql, rows)

        connection.execute_each = execute_each  # type: ignore[method-assign]
        return connection


def test_rows_that_the_database_rejects_count_as_dropped_and_block_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with opened(f"sqlite:{tmp_path}/state.db", wrap=RejectingOpener) as store:
            store.keep_receipt(ReceiptRow("bad-1", NOW, b"x"))
            store.count(counted(2, 1))
            await eventually(lambda: store.counters().dropped_receipts == 1)
            figures = store.counters()
            assert (figures.held_receipts, figures.held_counts, figures.dropped_counts) == (0, 0, 3)
            store.keep_receipt(ReceiptRow("good-1", NOW, b"x"))
            await eventually(lambda: store.counters().held_receipts == 0)
            assert await store.receipt("good-1") == ReceiptRow("good-1", NOW, b"x")
            assert await store.receipt("bad-1") is None and not store.trouble

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "rejected rows, which are lost: no such receipt" in caplog.text
    assert "dropped 1 receipts, 0 comparisons, 3 counts" in caplog.text


class IdleWorker(StoreWorker):
    """A worker that runs no task."""

    def __init__(self) -> None:
        super().__init__(None, None, ManualClock(), None)  # type: ignore[arg-type]
        self.jobs: list[Any] = []

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    @property
    def num_waiting(self) -> int:
        return len(self.jobs)

    def submit(self, job: Any) -> None:
        self.jobs.append(job)


async def test_a_call_beyond_the_limit_is_refused_at_once() -> None:
    worker = IdleWorker()
    worker.start()
    waiting = [asyncio.ensure_future(worker.run(lambda database: 0)) for _ in range(MOST_CALLS)]
    await asyncio.sleep(0)
    assert worker.num_waiting == MOST_CALLS
    with pytest.raises(StoreUnavailable) as refused:
        await worker.run(lambda database: 0)
    assert refused.value.certain and worker.num_waiting == MOST_CALLS
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not any(job.set_running_or_notify_cancel() for job in worker.jobs), "an abandoned call must not be made"


def test_a_commit_is_on_the_disk_when_it_returns(tmp_path: Path) -> None:
    """SQLite guarantees this with the settings that the test checks."""
    with closing(SqliteFile(tmp_path / "state.db").open()) as connection:
        assert connection.execute("PRAGMA synchronous") == [(2,)]
        assert connection.execute("PRAGMA journal_mode") == [("wal",)]


def test_a_commit_to_a_file_that_was_moved_meanwhile_has_an_unknown_outcome(tmp_path: Path) -> None:
    """The outcome is unknown because the commit takes effect if the file is put back later."""
    path = tmp_path / "state.db"
    with closing(SqliteFile(path).open()) as connection:
        connection.begin()
        connection.execute("CREATE TABLE t (n INTEGER)")
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreCommitUnknown, match="moved or replaced"):
            connection.commit()
