"""Where the load is posted for everyone who watches it."""

import asyncio

from octet.clock import Clock
from octet.rpc.refusal import queue_full
from octet.v1 import specialist_pb2 as wire
from specialist.service.adapters import Adapters
from specialist.service.load import Load, Seats
from specialist.service.reply import report_of

PREEMPTING_SECONDS = 1.0
"""A replica counts as preempting for so long after somebody gave way."""


class LoadBoard:
    """Belongs to the event loop."""

    def __init__(self, adapters: Adapters, clock: Clock, seats: Seats, load: Load, *, max_watchers: int) -> None:
        self._adapters = adapters
        self._clock = clock
        self.seats = seats
        self._load = load
        self._max_watchers = max_watchers
        self.watchers: set[asyncio.Event] = set()
        self.draining = False
        self.closed = asyncio.Event()
        """Nothing will change any more."""

    def close(self) -> None:
        self.closed.set()
        self.changed()

    def admit(self, watcher: asyncio.Event) -> None:
        """Raises Refusal when too many watch: they must not take the calls of those who ask."""
        if len(self.watchers) >= self._max_watchers:
            raise queue_full("watching", self._max_watchers, None)
        self.watchers.add(watcher)

    def post(self, load: Load) -> None:
        self._load = load
        self.changed()

    def changed(self) -> None:
        for watcher in self.watchers:
            watcher.set()

    @property
    def drain_rate(self) -> float | None:
        return self._load.rates.drain

    def report(self) -> wire.LoadReport:
        at = self._load.preempted_at
        preempting = at is not None and self._clock.now() - at < PREEMPTING_SECONDS
        return report_of(self._load, self._adapters.names(), self.seats, preempting=preempting, draining=self.draining)


class Watch:
    """One watcher: hears of every change, and of many at once when it is slow."""

    def __init__(self, board: LoadBoard) -> None:
        self._board = board
        self._event = asyncio.Event()
        self._last: wire.LoadReport | None = None

    def __enter__(self) -> "Watch":
        """Raises Refusal."""
        self._board.admit(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        self._board.watchers.discard(self._event)

    async def next(self) -> wire.LoadReport | None:
        """A report that differs from the last one; None when none will come."""
        while (report := self._board.report()) == self._last:
            if self._board.closed.is_set():
                return None
            await self._wait(PREEMPTING_SECONDS if report.preempting else None)
        self._last = report
        return report

    async def _wait(self, seconds: float | None) -> None:
        """Preempting ends by itself: nothing happens that would wake anybody."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return
        self._event.clear()
