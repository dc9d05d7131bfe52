"""The store as the event loop uses it: no call blocks, and no acknowledged change is lost."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from octet.clock import Clock, SystemClock
from octet.config.ensemble import Ensemble, StoreConfig
from octet.identity import digest_parts
from octet.rpc.refusal import invalid_field
from octet.terminal import install_hint
from router.store import connection, rows
from router.store.buffer import WriteBuffer
from router.store.connection import DatabaseConnection, DatabaseOpener
from router.store.database import (
    RECEIPT_COLUMNS,
    Database,
    StorePosition,
    StoreSnapshot,
    receipt_from_row,
)
from router.store.jobs import JobTable
from router.store.migrations import MIGRATIONS, Migration, migrate
from router.store.responses import ResponseTable
from router.store.rows import AuditRow, ComparisonRow, CountBucket, Document, DocumentEdit, ReceiptRow, StoreChanges
from router.store.sync import LONGEST_WINDOW, LabelReceipt, StoreHealth, StoreSync, oldest_text_ms
from router.store.worker import StoreWorker, wait_at_most

T = TypeVar("T")
_log = logging.getLogger("router.store")
_START_SECONDS = 5.0
_CLOSE_SECONDS = 5.0
_PAGE_ROWS = 200
_ID_PAGE_ROWS = 500
_MAX_SAME_ID = 20
_MAX_COMPARISONS = 8
MAX_SLICES_WRITTEN = 500  # maximum number of rows in one call
_SLICE_PAGE_ROWS = 4 * MAX_SLICES_WRITTEN  # more rows than can share a sequence number
_SLICE_COLUMNS = ", ".join(rows.SliceRow._fields)
_MAX_AUDIT = 10_000
_DIGEST_DIGITS = 8
_MAX_ROWS_IN_MEMORY = 10_000  # maximum number of rows of a table that is only in memory
_MAX_RESPONSE_BYTES_IN_MEMORY = 64 << 20
_LAST_NUMBER = (1 << 63) - 1
_URL_FORMS = "must be empty, sqlite:PATH, postgresql://USER:PASSWORD@HOST:PORT/DATABASE or memory"
_ADVICE = "set store.url to sqlite:PATH in a writable folder, postgresql://... or memory"


class SliceUpdate(NamedTuple):
    position: StorePosition
    rows: Sequence[rows.SliceRow]  # rows of other writers; some may have been read before
    whole: bool  # whether to forget all rows read before: this is the first read, or another database
    more: bool  # whether more rows can be read immediately


def open_store(
    config: StoreConfig, ensemble_name: str, base: Path | None = None, window: float = LONGEST_WINDOW
) -> "Store":
    """Return a store, which connects in `Store.start`. A relative SQLite path is resolved against `base`. Buckets that
    started more than `window` seconds ago are not passed to `on_change`. Raises BadStoreUrl for an invalid URL."""
    return Store(opener_for_url(config.url, ensemble_name, base), config, ensemble_name, window)


class Store:
    """The router's store. Used on one event loop; everything that blocks runs on the store's thread."""

    def __init__(
        self,
        opener: DatabaseOpener,
        config: StoreConfig,
        ensemble_name: str,
        window: float = LONGEST_WINDOW,
        *,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
        migrations: Sequence[Migration] = MIGRATIONS,
        worker: Callable[..., StoreWorker] = StoreWorker,
    ) -> None:
        self._clock = clock or SystemClock()
        self._wall = wall
        self._window = window
        self._max_rows = _MAX_ROWS_IN_MEMORY if isinstance(opener, connection.SqliteMemory) else _LAST_NUMBER
        self._held = held = WriteBuffer(config.queue)
        self.count, self.counters = held.count, held.counters
        self.keep_receipt, self.keep_comparison = held.keep_receipt, held.keep_comparison
        self.keep_verdict = held.keep_verdict
        self.health = StoreHealth(opener.name, self._clock)
        self._worker = worker(
            opener,
            lambda opened: migrate(opened, ensemble_name, token_hex(16), migrations),
            self._clock,
            StoreSnapshot(opener.name, wall),
        )
        self.limits = self._limit_rows(config)
        self._is_open = False
        self._sync: StoreSync | None = None
        # called on the event loop within half a second of a commit by any process
        self.on_change: Callable[[StoreChanges], None] = lambda changes: None
        self.label_receipt: LabelReceipt | None = None  # labels old receipts on the store's thread; set before `start`

    @property
    def is_durable(self) -> bool:
        return self._max_rows == _LAST_NUMBER

    @property
    def trouble(self) -> str:
        return self.health.text

    def reconfigure(self, config: StoreConfig) -> None:
        self.limits = self._limit_rows(config)
        self._held.most_rows = config.queue
        if self._sync is not None:
            self._sync.limits = self.limits

    async def start(self) -> None:
        """Start the synchronisation, and wait until its first round has succeeded, has failed or takes too long."""
        self._worker.start()
        self._is_open = True
        sync = StoreSync(
            *(self._worker, self._held, self.health, self._wall, self._window, self.limits),
            on_change=lambda changes: self.on_change(changes),  # noqa: PLW0108 (the callback may be replaced)
            label_receipt=self.label_receipt,
        )
        self._sync = sync
        await sync.start(_START_SECONDS)

    async def close(self) -> None:
        if not self._is_open or self._sync is None:
            return
        self._is_open = False
        await self._sync.finish(_CLOSE_SECONDS)
        stopped = asyncio.get_running_loop().create_future()
        self._worker.stop(lambda: self._worker.call_on_loop(lambda: stopped.set_result(None)))
        if not await wait_at_most(stopped, _CLOSE_SECONDS):
            self._worker.abort()
            await wait_at_most(stopped, 1.0)
        if not self._held.is_empty:
            _log.error("the store was closed before all rows were written: %s are lost", self._held.summary())

    async def change(
        self, kind: str, key: str, expected_version: int, body: rows.DocumentBody | None, audit: AuditRow
    ) -> Document:
        (document,) = await self.change_all([DocumentEdit(kind, key, expected_version, body)], audit)
        return document

    async def change_all(self, edits: Sequence[DocumentEdit], audit: AuditRow) -> tuple[Document, ...]:
        """Commit all edits with the audit row, or none of them; return when they are on disk. Without edits, only the
        audit row is written. Raises StoreConflict, StoreUnavailable, and Refusal for invalid values."""
        checked, row, change_id = list(map(rows.check_edit, edits)), rows.check_audit_row(audit), token_hex(16)
        documents = await self._open_worker().run(lambda database: database.change(change_id, checked, row))
        if self._sync is not None:
            self._sync.run_soon()
        return documents

    async def documents(self) -> Sequence[Document]:
        return await self._open_worker().run(lambda database: database.documents())

    async def buckets(self, series: str, since: int) -> Sequence[CountBucket]:
        rows.check_key("series", series)
        return await self._open_worker().run_and_shape(
            lambda database: database.buckets(series, since),
            lambda stored: self._held.merge_held(stored, lambda key: key[0] == series and key[2] >= since),
        )

    async def receipt(self, request_id: str) -> ReceiptRow | None:
        held = self._held.receipt(request_id)
        if held is not None:
            return self._held.verdicts.apply(held)
        rows.check_key("request_id", request_id)
        return await self._open_worker().run_and_shape(
            lambda database: database.receipt(request_id),
            lambda row: None if row is None else self._held.verdicts.apply(row),
        )

    async def audit(self, most: int = 100, subject: str = "", before: int = 0) -> Sequence[AuditRow]:
        """List audit rows, newest first. `subject` and `before` (a row number) limit the rows if they are given."""
        if subject:
            rows.check_key("subject", subject)
        limit, end = min(most, _MAX_AUDIT), before or _LAST_NUMBER
        return await self._open_worker().run(lambda database: database.audit(limit, subject, end))

    async def comparisons(self, since_ms: int) -> AsyncIterator[ComparisonRow]:
        after = 0
        while page := await self._open_worker().run(
            partial(
                Database.comparisons,
                since_ms=since_ms,
                after=after,
                most=_PAGE_ROWS,
                texts_since_ms=oldest_text_ms(self.limits, self._wall()),
            )
        ):
            for _, row in page:
                yield row
            after = page[-1][0]

    async def jobs(self, call: Callable[[JobTable], T], /) -> T:
        return await self._open_worker().run(lambda database: call(JobTable(database)))

    async def responses(self, call: Callable[[ResponseTable], T], /) -> T:
        return await self._open_worker().run(lambda database: call(ResponseTable(database)))

    async def newest_receipts(self, query: rows.ReceiptQuery) -> Sequence[ReceiptRow]:
        def add_held(stored: list[ReceiptRow]) -> Sequence[ReceiptRow]:
            held = {row.request_id: row for row in self._held.receipts()}
            kept = [row for row in stored if row.request_id not in held]
            found = [*filter(query.matches, reversed(held.values())), *kept]
            return sorted(found, key=lambda row: row.at_ms, reverse=True)[: query.most]

        if not all(map(rows.is_valid_key, query.filters.values())):  # no receipt has labels like these
            return ()
        return await self._open_worker().run_and_shape(lambda database: find_newest(database, query), add_held)

    async def receipts_by_id(self, request_id: str) -> Sequence[ReceiptRow]:
        def add_held(stored: list[ReceiptRow]) -> Sequence[ReceiptRow]:
            found = {row.request_id: row for row in (*stored, *self._held.receipts())}
            same_id = (row for key, row in found.items() if key == rows.receipt_key(request_id, row.labels.tenant))
            return list(map(self._held.verdicts.apply, same_id))

        if not rows.is_valid_key(request_id):
            return ()
        return await self._open_worker().run_and_shape(lambda database: _find_by_id(database, request_id), add_held)

    async def find_comparisons(self, request_id: str) -> Sequence[ComparisonRow]:
        if not rows.is_valid_key(request_id):
            return ()
        found = "SELECT at_ms, request_id, raw FROM comparisons WHERE request_id = ? ORDER BY number DESC LIMIT ?"
        return await self._open_worker().run_and_shape(
            lambda database: database.connection.execute(found, (request_id, _MAX_COMPARISONS)),
            lambda stored: [
                *self._held.comparisons(request_id),
                *(ComparisonRow(int(at_ms), name, bytes(raw)) for at_ms, name, raw in stored),
            ],
        )

    async def find_audit(self, subjects: Sequence[str], since_ms: int, until_ms: int, most: int) -> Sequence[AuditRow]:
        known = [subject for subject in subjects if rows.is_valid_key(subject)]
        if not known:
            return ()
        return await self._open_worker().run(lambda database: database.find_audit(known, since_ms, until_ms, most))

    async def exchange_slices(
        self, writer: str, written: Sequence[rows.SliceRow], position: StorePosition | None, now_ms: int
    ) -> SliceUpdate:
        """Write the rows `written`, and read the unexpired rows that other writers have written since `position`.
        Idempotent. Raises Refusal for an invalid row, and StoreUnavailable."""
        if len(written) > MAX_SLICES_WRITTEN:
            raise invalid_field("slices", f"at most {MAX_SLICES_WRITTEN} per call", str(len(written)))
        for row in written:
            rows.check_slice(row)
        return await self._open_worker().run(partial(_exchange_slices, writer, written, position, now_ms))

    def _open_worker(self) -> StoreWorker:
        if not self._is_open:
            raise rows.StoreUnavailable("the store is not open")
        return self._worker

    def _limit_rows(self, config: StoreConfig) -> StoreConfig:
        most = self._max_rows
        tables = ("receipts", "comparisons", "texts", "responses")
        limited: dict[str, Any] = {name: min(getattr(config, name), most) for name in tables}
        if not self.is_durable:
            limited["responses_bytes"] = min(config.responses_bytes, _MAX_RESPONSE_BYTES_IN_MEMORY)
        return replace(config, **limited)


def store_name(ensemble: Ensemble) -> str:
    """Return the name of an ensemble's store. With a URL, all routers whose ensembles have the same name share the
    store. Without a URL, every configuration file has its own store."""
    name, source = ensemble.name, ensemble.source
    if source is not None and not ensemble.store.url:
        name = f"{name}-{digest_parts([str(source.resolve()).encode()]).hex()[:_DIGEST_DIGITS]}"
    return name


def read_documents(ensemble: Ensemble, kind: str) -> Mapping[str, rows.DocumentBody]:
    """Read the stored documents of this kind by key, in the calling thread; none are known of a store that no router
    has used yet. Raises StoreConnectionLost, and BadStoreUrl for an invalid URL."""
    source, name = ensemble.source, store_name(ensemble)
    opener = opener_for_url(ensemble.store.url, name, None if source is None else source.parent)
    with closing(opener.open()) as opened:
        migrate(opened, name, token_hex(16), MIGRATIONS)
        opened.begin_reading()
        documents = Database(opened, StoreSnapshot(opener.name, time.time)).documents()
        opened.rollback()
    return {each.key: each.body for each in documents if each.kind == kind and each.body is not None}


def opener_for_url(url: str, ensemble: str, base: Path | None) -> DatabaseOpener:
    scheme, colon, rest = url.partition(":")
    if not url:
        try:
            state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        except RuntimeError:
            return MissingHomeOpener()
        return connection.SqliteFile(Path(state) / "octet" / f"{ensemble}.db", _ADVICE)
    if url == "memory":
        return connection.SqliteMemory()
    if scheme == "sqlite" and colon:
        if not rest or rest == connection.IN_MEMORY or rest.startswith("//") or "\0" in rest:
            raise connection.BadStoreUrl(
                f"store.url {_URL_FORMS}; an absolute path is written as sqlite:/var/lib/octet/state.db"
            )
        try:
            return connection.SqliteFile((base or Path()) / Path(rest).expanduser(), _ADVICE)
        except RuntimeError as error:
            raise connection.BadStoreUrl(f"store.url: {error}") from error
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        if find_spec("psycopg") is None:
            raise connection.BadStoreUrl(f"store.url: PostgreSQL needs psycopg: {install_hint('postgres')}")
        try:
            from router.store.postgres import PostgresUrl  # heavy, and an optional dependency
        except ImportError as error:
            raise connection.BadStoreUrl(
                f"store.url: psycopg cannot be loaded ({error}): {install_hint('postgres')}"
            ) from error
        return PostgresUrl(url)
    raise connection.BadStoreUrl(f"store.url {_URL_FORMS}")


class MissingHomeOpener:
    name = "SQLite file"

    def open(self) -> DatabaseConnection:
        raise connection.StoreConnectionLost(f"there is no home folder for the default database file; {_ADVICE}")


def find_newest(database: Database, query: rows.ReceiptQuery) -> list[ReceiptRow]:
    """Return the newest receipts that match. The inner SELECT reads only the index, not the other receipts."""
    wanted = [f"{column} = ?" for column in query.filters]
    values: list[object] = list(query.filters.values())
    if query.before_ms:
        wanted.append("at_ms < ?")
        values.append(query.before_ms)
    where = f"WHERE {' AND '.join(wanted)} " if wanted else ""
    found = database.connection.execute(
        f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE number IN "  # noqa: S608
        f"(SELECT number FROM receipts {where}ORDER BY at_ms DESC, number DESC LIMIT ?) "
        "ORDER BY at_ms DESC, number DESC",
        (*values, query.most),
    )
    return list(map(receipt_from_row, found))


def _find_by_id(database: Database, request_id: str) -> list[ReceiptRow]:
    execute = database.connection.execute
    keys = [rows.receipt_key(request_id, tenant) for (tenant,) in execute("SELECT DISTINCT tenant FROM receipts")]
    found: list[ReceiptRow] = []
    for start in range(0, len(keys), _ID_PAGE_ROWS):
        page = keys[start : start + _ID_PAGE_ROWS]
        marks = ", ".join("?" * len(page))
        sql = f"SELECT {RECEIPT_COLUMNS} FROM receipts WHERE request_id IN ({marks}) ORDER BY request_id"  # noqa: S608
        found += map(receipt_from_row, execute(sql, page))
    return found[:_MAX_SAME_ID]


def _exchange_slices(
    writer: str, written: Sequence[rows.SliceRow], position: StorePosition | None, now_ms: int, database: Database
) -> SliceUpdate:
    if written:
        with database.transaction():
            seq = database.advance().seq
            database.connection.execute_each(
                f"INSERT INTO slices ({_SLICE_COLUMNS}, seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "  # noqa: S608
                "ON CONFLICT (writer, series, key, start_ms, span_ms) DO UPDATE SET until_ms = excluded.until_ms, "
                "raw = excluded.raw, seq = excluded.seq",
                [(*row, seq) for row in written],
            )
    now = database.position()
    whole, after = now.resume(position)
    found = database.connection.execute(
        f"SELECT seq, {_SLICE_COLUMNS} FROM slices WHERE seq > ? AND writer <> ? AND until_ms > ? ORDER BY seq LIMIT ?",  # noqa: S608
        (after, writer, now_ms, _SLICE_PAGE_ROWS),
    )
    more = len(found) == _SLICE_PAGE_ROWS
    last = int(found[-1][0]) if found else 0
    read = [
        rows.SliceRow(name, series, key, int(start), int(span), int(until), bytes(raw))
        for _, name, series, key, start, span, until, raw in found
    ]
    return SliceUpdate(now._replace(seq=last - 1 if more else max(now.seq, last)), read, whole, more)
