"""The store's one thread with its one connection: everything that may block happens here."""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from octet.clock import Clock
from octet.mishap import mishap, words_of
from octet.store.connection import Connection, Opener
from octet.store.database import Database
from octet.store.errors import Refused, Stale, Unavailable, Unknown
from octet.store.exchange import recognise
from octet.store.history import History
from octet.store.job import Job
from octet.store.watched import Pulse, Watched

T = TypeVar("T")
_log = logging.getLogger(__name__)
_PAUSE = 0.1
"""Seconds between two looks for a lost commit."""


class Worker:
    def __init__(self, opener: Opener, migrate: Callable[[Connection], None], clock: Clock, history: History) -> None:
        self._opener = opener
        self._migrate = migrate
        self._clock = clock
        self._history = history
        self._pulse = Pulse(clock)
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._connection: Connection | None = None
        self._stopped: Callable[[], None] = lambda: None
        self._thread = Thread(target=self._run, name="octet-store", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, stopped: Callable[[], None]) -> None:
        """After everything that was submitted. `stopped` is called on the store's thread."""
        self._stopped = stopped
        self._jobs.put(None)

    def submit(self, job: Job[T]) -> None:
        self._jobs.put(job)

    @property
    def num_waiting(self) -> int:
        return self._jobs.qsize()

    @property
    def silent_seconds(self) -> float:
        """How long the database has owed an answer."""
        return self._pulse.seconds

    def abort(self) -> None:
        """From any thread: gives up what is under way. The next attempt has a connection of its own."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.begin():
                self._perform(job)
        self._disconnect()
        self._stopped()

    def _perform(self, job: Job[T]) -> None:
        try:
            result = self._attempt(job)
        except Exception as error:
            if not isinstance(error, (Unavailable, Refused, Stale)):
                _log.exception("the store failed by itself")
            job.failed(error)
        else:
            job.done(result)

    def _attempt(self, job: Job[T]) -> T:
        """Twice, because a connection may have died long ago without a word; a lost commit is looked for longer."""
        num_failed = 0
        lost: Unknown | None = None
        while True:
            try:
                return job.do(self._database())
            except Unavailable as error:
                self._disconnect()
                num_failed += 1
                lost = error if isinstance(error, Unknown) else lost
                if lost is None and num_failed >= 2:
                    raise
                if lost is not None and self._clock.now() >= job.settle_until:
                    raise lost from error
            if num_failed >= 2:
                self._clock.sleep(_PAUSE)

    def _database(self) -> Database:
        if mishap("store.away"):
            raise Unavailable(words_of("store.away"))
        if self._connection is None:
            with self._pulse.waiting():
                connection = self._opener.open()
            self._connection = Watched(connection, self._pulse)
            self._prepare(self._connection)
        database = Database(self._connection, self._history)
        recognise(database)
        return database

    def _prepare(self, connection: Connection) -> None:
        try:
            self._migrate(connection)
        except Exception:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
