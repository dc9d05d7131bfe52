"""Periodic synchronisation: write buffered rows, read committed changes, prune old rows."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex

from octet.backoff import Backoff, BackoffDelays
from octet.clock import Clock
from octet.config.ensemble import StoreConfig
from router.store.buffer import WriteBuffer
from router.store.connection import DatabaseConnection, StoreRejected
from router.store.database import Database, StorePosition
from router.store.responses import prune_responses
from router.store.rows import ReceiptLabels, StoreChanges, WriteBatch
from router.store.worker import StoreWorker, describe_error, wait_at_most

_log = logging.getLogger("router.store")
_TICK_SECONDS = 0.25
_DELAYS = BackoffDelays(first=_TICK_SECONDS, most=2.0, healthy=0.0)
_PRUNE_SECONDS = 5.0
_SILENCE_SECONDS = 4.0  # a connection without an answer for longer is aborted
_DROPPED_LOG_SECONDS = 5.0  # between two log lines about dropped rows
_REPEAT_SECONDS = 30.0  # between two log lines about the same outage
LONGEST_WINDOW = 31 * 86_400  # seconds; older counts are deleted
_IS_SHORT_START = "series IN ('demand', 'withheld', 'recent', 'supervisor') AND start"  # needed for an hour at most
SHORT_SECONDS = 2 * 3600
_IS_DAY_START = "series = 'usual' AND start"
DAY_SECONDS = 86_400
_PRUNE_ROWS = 1000
_LABEL_ROWS = 500
LabelReceipt = Callable[[bytes], ReceiptLabels]  # computes labels that an older version did not store
_BUCKET_KEY = ("series", "key", "start")
_SLICE_KEY = ("writer", "series", "key", "start_ms", "span_ms")


class StoreHealth:
    """Tracks whether the database answers. Logs when an outage begins, while it lasts, and when it ends."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._since = 0.0
        self._logged_at = 0.0
        self.text = ""  # empty while the database answers
        self.on_change: Callable[[str], None] = lambda text: None

    def failed(self, why: str, held: str) -> None:
        now = self._clock.now()
        text = f"{self._name}: {why}"
        is_new = not self.text
        if is_new:
            self._since = now
        if is_new or now - self._logged_at >= _REPEAT_SECONDS:
            self._logged_at = now
            _log.error("the store does not answer, requests are still served: %s (%s held)", text, held)
        if text != self.text:
            self.text = text
            self._notify()

    def recovered(self) -> None:
        if self.text:
            self.text = ""
            _log.warning("the store answers again after %.1f s: %s", self._clock.now() - self._since, self._name)
            self._notify()

    def _notify(self) -> None:
        try:
            self.on_change(self.text)
        except Exception:
            _log.exception("the callback for store trouble failed")


@dataclass(eq=False)
class StoreSync:
    """Synchronises with the database in rounds. A round writes the next batch, then reads the committed changes. A
    failed round is retried and loses nothing. `on_change` gets only buckets of the last `_window` seconds."""

    _worker: StoreWorker
    _held: WriteBuffer
    _health: StoreHealth
    _wall: Callable[[], float]
    _window: float
    limits: StoreConfig  # the limits on the rows that are kept
    on_change: Callable[[StoreChanges], None]
    label_receipt: LabelReceipt | None = None

    def __post_init__(self) -> None:
        self._clock = self._worker.clock
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(self._clock, random.random, _DELAYS)
        self._writer = token_hex(16)
        self._position: StorePosition | None = None
        self._running: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_round = self._next_prune = self._next_dropped_log = 0.0
        self._num_dropped_logged = 0

    async def start(self, seconds: float) -> None:
        self._tick()
        if self._running is not None:
            await wait_at_most(self._running, seconds)

    def run_soon(self) -> None:
        self._next_round = 0.0

    async def finish(self, seconds: float) -> None:
        """Write the buffered rows, unless the database is down or slow, and stop."""
        end = self._clock.now() + seconds
        has_failed = False
        while not (self._held.is_empty or has_failed or self._clock.now() >= end):
            await wait_at_most(self._running or self._begin_round(), end - self._clock.now())
            has_failed = bool(self._health.text)
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now = self._clock.now()
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        silent = self._worker.silent_seconds
        if silent > _SILENCE_SECONDS:
            self._worker.abort()
            self._health.failed(f"no answer for {silent:.0f} s", self._held.summary())
        elif lost := self._worker.lost_commit:
            self._health.failed(lost, self._held.summary())
        if self._running is None and now >= self._next_round:
            self._begin_round()
        held = self._held
        if held.num_dropped > self._num_dropped_logged and now >= self._next_dropped_log:
            self._next_dropped_log = now + _DROPPED_LOG_SECONDS
            self._num_dropped_logged = held.num_dropped
            _log.error(
                "the store has dropped %d receipts, %d comparisons, %d counts and %d verdicts since the start",
                *(held.dropped_receipts, held.dropped_comparisons, held.dropped_counts, held.verdicts.num_dropped),
            )

    def _begin_round(self) -> "asyncio.Future[None]":
        self._running = self._loop.create_future()
        batch, position, now = self._held.next_batch(), self._position, self._wall()

        def do(database: Database) -> tuple[str, StorePosition, StoreChanges | None]:
            """Write the batch and read the changes. The first item returned is why the batch was rejected, or ""."""
            rejected = ""
            if batch is not None:
                try:
                    database.write(batch, self._writer, round(now * 1000))
                except StoreRejected as error:
                    rejected = describe_error(error)
            return rejected, *database.changes_after(position, int(now - self._window))

        self._worker.call(do, partial(self._round_done, batch), self._round_failed)
        return self._running

    def _round_done(self, batch: WriteBatch | None, result: tuple[str, StorePosition, StoreChanges | None]) -> None:
        rejected, self._position, changes = result
        self._end_round()
        self._backoff.mark_ready()
        self._next_round = 0.0
        self._health.recovered()
        if batch is not None and rejected:
            _log.error("the database rejected rows, which are lost: %s", rejected)
            self._held.reject(batch)
        elif batch is not None:
            self._held.confirm(batch)
        if changes is not None:
            self._report(changes)
        if self._clock.now() >= self._next_prune:
            self._prune()

    def _round_failed(self, error: Exception) -> None:
        self._end_round()
        self._next_round = self._clock.now() + self._backoff.next_delay()
        self._health.failed(describe_error(error), self._held.summary())

    def _end_round(self) -> None:
        if self._running is not None and not self._running.done():
            self._running.set_result(None)
        self._running = None

    def _report(self, changes: StoreChanges) -> None:
        if changes.whole:
            since = self._wall() - self._window
            buckets = self._held.merge_held(changes.buckets, lambda key: key[2] >= since)
        else:
            buckets = list(map(self._held.add_held, changes.buckets))
        try:
            self.on_change(changes._replace(buckets=buckets))
        except Exception:
            _log.exception("the callback for store changes failed")

    def _prune(self) -> None:
        now, limits, label = self._wall(), self.limits, self.label_receipt
        self._next_prune = float("inf")

        def do(database: Database) -> bool:
            with database.transaction():
                more = prune_rows(database.connection, limits, now)
                return more if label is None else label_receipts(database, label) or more

        def done(more: bool) -> None:
            self._next_prune = self._clock.now() + (0.0 if more else _PRUNE_SECONDS)

        def failed(error: Exception) -> None:
            _log.warning("old rows could not be removed: %s", describe_error(error))
            done(more=False)

        self._worker.call(do, done, failed)


def label_receipts(database: Database, label: LabelReceipt) -> bool:
    """Within a transaction, label one page of unlabelled receipts. Return whether there may be more."""
    rows = database.connection.execute(
        "SELECT number, raw FROM receipts WHERE outcome = '' ORDER BY number LIMIT ?", (_LABEL_ROWS,)
    )
    found = [(int(number), label(bytes(raw))) for number, raw in rows]
    database.connection.execute_each(
        "UPDATE receipts SET tenant = ?, specialist = ?, outcome = ? WHERE number = ?",
        [(each.tenant, each.specialist, each.outcome, number) for number, each in found],
    )
    return len(rows) == _LABEL_ROWS


def prune_rows(connection: DatabaseConnection, limits: StoreConfig, now: float) -> bool:
    oldest = int(now) - LONGEST_WINDOW
    more = [
        _keep_newest(connection, "receipts", "receipts", limits.receipts),
        _keep_newest(connection, "comparisons", "comparisons", limits.comparisons),
        _keep_newest(connection, "audit", "audits", limits.audit),
        _delete_old(connection, "buckets", _BUCKET_KEY, "start", oldest),
        _delete_old(connection, "buckets", _BUCKET_KEY, _IS_SHORT_START, int(now) - SHORT_SECONDS),
        _delete_old(connection, "buckets", _BUCKET_KEY, _IS_DAY_START, int(now) - DAY_SECONDS),
        _delete_old(connection, "slices", _SLICE_KEY, "until_ms", int(now * 1000)),
        prune_responses(connection, limits, int(now * 1000)),
        _delete_texts(connection, limits, oldest_text_ms(limits, now)),
    ]
    connection.execute("DELETE FROM writers WHERE at_ms < ?", (oldest * 1000,))
    connection.execute("DELETE FROM documents WHERE body IS NULL AND changed_ms < ?", (oldest * 1000,))
    return any(more)


def _keep_newest(connection: DatabaseConnection, table: str, counter: str, most: int) -> bool:
    """Delete one page of the rows that are older than the newest `most` rows. Return whether such rows are left."""
    ((first, last),) = connection.execute(f"SELECT (SELECT MIN(number) FROM {table}), {counter} FROM meta")  # noqa: S608
    if first is None or first > last - most:
        return False
    end = min(last - most, first + _PRUNE_ROWS - 1)
    connection.execute(f"DELETE FROM {table} WHERE number <= ?", (end,))  # noqa: S608
    return bool(end < last - most)


def oldest_text_ms(limits: StoreConfig, now: float) -> int:
    return round((now - limits.texts_keep) * 1000)


def _delete_texts(connection: DatabaseConnection, limits: StoreConfig, oldest_ms: int) -> bool:
    """Delete one page of the comparisons' texts that have expired or are not among the newest. The comparisons stay.
    Return whether more are left."""
    kept = "SELECT number FROM comparisons WHERE text IS NOT NULL"
    old = connection.execute(f"{kept} AND at_ms < ? ORDER BY number LIMIT ?", (oldest_ms, _PRUNE_ROWS))
    most = (_PRUNE_ROWS, limits.texts)
    old = [*old, *connection.execute(f"{kept} ORDER BY number DESC LIMIT ? OFFSET ?", most)]
    connection.execute_each("UPDATE comparisons SET text = NULL WHERE number = ?", old)
    return len(old) >= _PRUNE_ROWS


def _delete_old(connection: DatabaseConnection, table: str, key: Sequence[str], old: str, before: int) -> bool:
    """Delete one page of the rows for which `old`, which ends with a time, is less than `before`. Return whether such
    rows may be left."""
    found = f"SELECT {', '.join(key)} FROM {table} WHERE {old} < ? LIMIT ?"  # noqa: S608
    rows = connection.execute(found, (before, _PRUNE_ROWS))
    matches = " AND ".join(f"{column} = ?" for column in key)
    connection.execute_each(f"DELETE FROM {table} WHERE {matches}", rows)  # noqa: S608
    return len(rows) == _PRUNE_ROWS
