"""The store as the router's event loop sees it: nothing here blocks, and nothing acknowledged is lost."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from octet.clock import Clock, SystemClock
from octet.config.ensemble import StoreConfig
from octet.store.calls import Calls, within
from octet.store.connection import Connection, Opener
from octet.store.database import Database, Proposal
from octet.store.errors import StoreUnavailable
from octet.store.held import Held
from octet.store.history import History
from octet.store.jobs import JobStore
from octet.store.migrations import MIGRATIONS, Migration, migrate
from octet.store.record_table import LabelOf
from octet.store.records import Records
from octet.store.retention import LONGEST, Limits
from octet.store.rounds import Rounds
from octet.store.rows import (
    AuditRow,
    Body,
    Bucket,
    Changes,
    ComparisonRow,
    Document,
    Edit,
    Figures,
    ReceiptRow,
    Verdict,
)
from octet.store.slices import SliceStore
from octet.store.sqlite import SqliteMemory
from octet.store.trouble import Trouble
from octet.store.url import opener_of
from octet.store.values import body_text, check_edit, check_key, checked_audit, prose
from octet.store.worker import Worker

T = TypeVar("T")
S = TypeVar("S")
_log = logging.getLogger("octet.store")
_STARTING = 5.0
_CLOSING = 5.0
"""Seconds, both."""
_PAGE = 200
_MOST_AUDIT = 10_000
_MOST_IN_MEMORY = 10_000
"""Rows of a kind, where there is no disk."""
_LAST_NUMBER = (1 << 63) - 1


def open_store(config: StoreConfig, ensemble_name: str, base: Path | None = None, window: float = LONGEST) -> "Store":
    """Opens nothing yet: see `Store.start`. A relative SQLite path starts at `base`. Of buckets that began more than
    `window` seconds ago nothing is told. Raises BadStoreUrl."""
    return Store(opener_of(config.url, ensemble_name, base), config, ensemble_name, window)


class Store:
    """Used on one event loop; whatever blocks happens on a thread of its own."""

    def __init__(
        self,
        opener: Opener,
        config: StoreConfig,
        ensemble_name: str,
        window: float = LONGEST,
        *,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
        migrations: Sequence[Migration] = MIGRATIONS,
        worker: Callable[..., Worker] = Worker,
    ) -> None:
        """`wall` tells Unix seconds. `worker` is whoever does what may block."""
        self._clock = clock or SystemClock()
        self._wall = wall
        self._window = window
        self._most_rows = _MOST_IN_MEMORY if isinstance(opener, SqliteMemory) else _LAST_NUMBER
        self._held = Held(config.queue)
        self._trouble = Trouble(opener.name, self._clock)
        history = History(opener.name, wall)
        self._worker = worker(opener, partial(_migrated, ensemble_name, migrations), self._clock, history)
        self._config = config
        self._calls: Calls | None = None
        """While it is open."""
        self._rounds: Rounds | None = None
        self.on_change: Callable[[Changes], None] | None = None
        """Called on the event loop within half a second of a commit by any process."""
        self.label_of: LabelOf | None = None
        """Says on the store's thread what receipts without labels are found by; taken at the start."""

    @property
    def is_durable(self) -> bool:
        """What is in it outlives this process."""
        return self._most_rows == _LAST_NUMBER

    @property
    def jobs(self) -> JobStore:
        return JobStore(self._ask)

    @property
    def records(self) -> Records:
        return Records(self._ask_for, self._held)

    @property
    def slices(self) -> SliceStore:
        return SliceStore(self._ask)

    @property
    def on_trouble(self) -> Callable[[str], None] | None:
        """Told why when the database stops answering, and "" when it is back."""
        return self._trouble.told

    @on_trouble.setter
    def on_trouble(self, told: Callable[[str], None] | None) -> None:
        self._trouble.told = told

    @property
    def trouble(self) -> str:
        """Empty while the database answers."""
        return self._trouble.text

    def figures(self) -> Figures:
        return self._held.figures()

    def reconfigure(self, config: StoreConfig) -> None:
        """The URL stays as it was."""
        self._config = config
        self._held.most_rows = config.queue
        if self._rounds is not None:
            self._rounds.limits = self._limits()

    async def start(self) -> None:
        """Returns after the first attempt: with everything told, or in trouble."""
        self._worker.start()
        self._calls = Calls(self._worker, self._clock)
        self._rounds = Rounds(self._worker, self._calls, self._held, self._trouble, self._clock, self._wall)
        self._rounds.limits = self._limits()
        self._rounds.window = self._window
        self._rounds.told = self._tell
        self._rounds.label_of = self.label_of
        await self._rounds.start(_STARTING)

    async def close(self) -> None:
        """Writes what is held, unless the database does not answer in time."""
        calls, self._calls = self._calls, None
        if calls is None or self._rounds is None:
            return
        await self._rounds.finish(_CLOSING)
        stopped = asyncio.get_running_loop().create_future()
        self._worker.stop(lambda: calls.hand_over(lambda: stopped.set_result(None)))
        if not await within(stopped, _CLOSING):
            self._worker.abort()
            await within(stopped, 1.0)
        if not self._held.is_empty:
            _log.error("the store was closed before all was written: %s were lost", self._held.summary())

    def count(self, bucket: Bucket) -> None:
        """`bucket` is a difference. Never blocks, never raises."""
        self._held.count(bucket)

    def keep_receipt(self, row: ReceiptRow) -> None:
        """Never blocks, never raises."""
        self._held.keep_receipt(row)

    def keep_comparison(self, row: ComparisonRow) -> None:
        """Never blocks, never raises."""
        self._held.keep_comparison(row)

    def keep_verdict(self, verdict: Verdict) -> None:
        """On a receipt that was kept before. Never blocks, never raises."""
        self._held.keep_verdict(verdict)

    async def change(
        self, kind: str, key: str, expected_version: int, body: Body | None, audit: AuditRow, by: str = ""
    ) -> Document:
        """As `change_all`, for one document."""
        (document,) = await self.change_all([Edit(kind, key, expected_version, body)], audit, by)
        return document

    async def change_all(self, edits: Sequence[Edit], audit: AuditRow, by: str = "") -> tuple[Document, ...]:
        """All or none, with the audit row, and on the disk when it returns. Without edits it is a note in the audit.
        Raises Stale, StoreUnavailable, and Refusal for what cannot be kept."""
        for edit in edits:
            check_edit(edit)
        bodies = [None if edit.body is None else body_text(edit.body) for edit in edits]
        proposal = Proposal(token_hex(16), edits, bodies, checked_audit(audit), prose("by", by or audit.who))
        documents = await self._open_calls().ask(lambda database: database.change(proposal))
        if self._rounds is not None:
            self._rounds.hurry()
        return documents

    async def documents(self) -> Sequence[Document]:
        """Without the deleted ones."""
        return await self._open_calls().ask(lambda database: database.documents())

    async def buckets(self, series: str, since: int) -> Sequence[Bucket]:
        """Sums, with what is held here."""
        check_key("series", series)
        return await self._open_calls().ask_for(
            lambda database: database.buckets(series, since),
            lambda stored: self._held.added_to_all(stored, lambda place: place[0] == series and place[2] >= since),
        )

    async def receipt(self, request_id: str) -> ReceiptRow | None:
        held = self._held.receipt(request_id)
        if held is not None:
            return self._held.verdicts.beside(held)
        check_key("request_id", request_id)
        return await self._open_calls().ask_for(
            lambda database: database.receipt(request_id),
            lambda row: None if row is None else self._held.verdicts.beside(row),
        )

    async def audit(self, most: int = 100, subject: str = "", before: int = 0) -> Sequence[AuditRow]:
        """Newest first; of one subject, and with lower numbers than `before`, where they are given."""
        if subject:
            check_key("subject", subject)
        limit, end = min(most, _MOST_AUDIT), before or _LAST_NUMBER
        return await self._open_calls().ask(lambda database: database.audit(limit, subject, end))

    async def comparisons(self, since_ms: int) -> AsyncIterator[ComparisonRow]:
        """Oldest first."""
        after = 0
        while page := await self._open_calls().ask(partial(_page, since_ms, after)):
            for _, row in page:
                yield row
            after = page[-1][0]

    async def _ask(self, do: Callable[[Database], T], /) -> T:
        return await self._open_calls().ask(do)

    async def _ask_for(self, do: Callable[[Database], T], shape: Callable[[T], S], /) -> S:
        return await self._open_calls().ask_for(do, shape)

    def _open_calls(self) -> Calls:
        if self._calls is None:
            raise StoreUnavailable("the store is not open")
        return self._calls

    def _limits(self) -> Limits:
        config, most = self._config, self._most_rows
        return Limits(min(config.receipts, most), min(config.comparisons, most), config.audit)

    def _tell(self, changes: Changes) -> None:
        if self.on_change is not None:
            self.on_change(changes)


def _migrated(ensemble: str, migrations: Sequence[Migration], connection: Connection) -> None:
    migrate(connection, ensemble, token_hex(16), migrations)


def _page(since_ms: int, after: int, database: Database) -> list[tuple[int, ComparisonRow]]:
    return database.comparisons(since_ms, after, _PAGE)
