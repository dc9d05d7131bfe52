"""Four times a second: what is held is written, and what anybody has committed is read."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex

from octet.clock import Clock
from octet.store.calls import Calls, shown, within
from octet.store.database import Database
from octet.store.errors import Refused
from octet.store.held import Batch, Held
from octet.store.history import Mark
from octet.store.record_table import LabelOf, RecordTable
from octet.store.retention import Limits, prune
from octet.store.rows import Bucket, Changes
from octet.store.trouble import Trouble
from octet.store.worker import Worker
from octet.supervise.backoff import Backoff, Delays

_log = logging.getLogger("octet.store")
_TICK = 0.25
_DELAYS = Delays(first=_TICK, most=2.0, healthy=0.0)
_PRUNE = 5.0
_SILENCE = 4.0
"""A database that owes an answer for longer is given up."""
_TELL = 5.0
"""Seconds, all of them: between two lines about rows that were dropped, the last."""


@dataclass(frozen=True, slots=True)
class _Round:
    batch: Batch | None
    refused: str
    """Why the database will never take the batch; empty: it has it."""
    mark: Mark
    changes: Changes | None


class Rounds:
    """One at a time. What fails is tried again later, and takes nothing with it."""

    def __init__(
        self, worker: Worker, calls: Calls, held: Held, trouble: Trouble, clock: Clock, wall: Callable[[], float]
    ) -> None:
        self._worker = worker
        self._calls = calls
        self._held = held
        self._trouble = trouble
        self._clock = clock
        self._wall = wall
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(clock, random.random, _DELAYS)
        self._writer = token_hex(16)
        self._mark: Mark | None = None
        self._under_way: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_round = self._next_prune = self._next_tell = 0.0
        self._num_told = 0
        self.limits = Limits(0, 0, 0)
        self.window = 0.0
        """Seconds: of buckets that began earlier nothing is told."""
        self.told: Callable[[Changes], None] = lambda changes: None
        self.label_of: LabelOf | None = None
        """Of receipts that have none."""

    async def start(self, seconds: float) -> None:
        """Waits for the first round, but no longer."""
        self._tick()
        if self._under_way is not None:
            await within(self._under_way, seconds)

    def hurry(self) -> None:
        """There is something new for certain."""
        self._next_round = 0.0

    async def finish(self, seconds: float) -> None:
        """Writes what is held, unless the database stays in trouble or is slow."""
        end = self._clock.now() + seconds
        is_hopeless = False
        while not (self._held.is_empty or is_hopeless or self._clock.now() >= end):
            await within(self._under_way or self._begin(), end - self._clock.now())
            is_hopeless = bool(self._trouble.text)
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now = self._clock.now()
        self._timer = self._loop.call_later(_TICK, self._tick)
        silent = self._worker.silent_seconds
        if silent > _SILENCE:
            self._worker.abort()
            self._trouble.begin(f"no answer for {silent:.0f} s", self._held.summary())
        if self._under_way is None and now >= self._next_round:
            self._begin()
        if self._held.num_dropped > self._num_told and now >= self._next_tell:
            self._tell_dropped(now)

    def _begin(self) -> "asyncio.Future[None]":
        self._under_way = self._loop.create_future()
        now = self._wall()
        do = partial(_do, self._held.take(), self._writer, self._mark, now, now - self.window)
        self._calls.submit(do, self._done, self._failed)
        return self._under_way

    def _done(self, result: _Round) -> None:
        self._end()
        self._backoff.ready()
        self._next_round = 0.0
        self._trouble.end()
        self._settle(result)
        self._mark = result.mark
        if result.changes is not None:
            self._tell(replace(result.changes, buckets=self._with_held(result.changes)))
        if self._clock.now() >= self._next_prune:
            self._prune()

    def _with_held(self, changes: Changes) -> Sequence[Bucket]:
        if not changes.whole:
            return list(map(self._held.added_to, changes.buckets))
        since = self._wall() - self.window
        return self._held.added_to_all(changes.buckets, lambda place: place[2] >= since)

    def _settle(self, result: _Round) -> None:
        if result.batch is None:
            return
        if result.refused:
            _log.error("the database refused rows, which are lost: %s", result.refused)
            self._held.refused(result.batch)
        else:
            self._held.written(result.batch)

    def _failed(self, error: Exception) -> None:
        self._end()
        self._next_round = self._clock.now() + self._backoff.died()
        self._trouble.begin(shown(error), self._held.summary())

    def _end(self) -> None:
        if self._under_way is not None and not self._under_way.done():
            self._under_way.set_result(None)
        self._under_way = None

    def _prune(self) -> None:
        self._next_prune = float("inf")
        do = partial(_pruned, self.limits, self._wall(), self.label_of)
        self._calls.submit(do, self._prune_again, self._prune_later)

    def _prune_again(self, more: bool) -> None:
        self._next_prune = self._clock.now() + (0.0 if more else _PRUNE)

    def _prune_later(self, error: Exception) -> None:
        """A round tells of the trouble, if it is one."""
        _log.warning("old rows could not be removed: %s", shown(error))
        self._next_prune = self._clock.now() + _PRUNE

    def _tell(self, changes: Changes) -> None:
        try:
            self.told(changes)
        except Exception:
            _log.exception("whoever follows the store's changes failed")

    def _tell_dropped(self, now: float) -> None:
        self._next_tell = now + _TELL
        self._num_told = self._held.num_dropped
        _log.error(
            "the store dropped %d receipts, %d comparisons and %d counts, and %d verdicts, since the start",
            self._held.dropped_receipts,
            self._held.dropped_comparisons,
            self._held.dropped_counts,
            self._held.verdicts.num_dropped,
        )


def _do(batch: Batch | None, writer: str, mark: Mark | None, now: float, since: float, database: Database) -> _Round:
    refused = "" if batch is None else _write(database, batch, writer, round(now * 1000))
    return _Round(batch, refused, *database.news(mark, int(since)))


def _write(database: Database, batch: Batch, writer: str, now_ms: int) -> str:
    """Why the database will never take it."""
    try:
        database.write(batch, writer, now_ms)
    except Refused as error:
        return shown(error)
    return ""


def _pruned(limits: Limits, now: float, label_of: LabelOf | None, database: Database) -> bool:
    with database.writing():
        more = prune(database.connection, limits, now)
        return more if label_of is None else RecordTable(database).sort(label_of) or more
