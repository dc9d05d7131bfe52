"""Where the load is posted for everyone who watches it."""

import asyncio
from math import inf

from admission.forecast import Desk
from octet.clock import Clock
from octet.mishap import mishap
from octet.rpc.refusal import queue_full
from octet.v1 import specialist_pb2 as wire
from specialist.service.adapters import Adapters
from specialist.service.load import DeskLoad, Load, Seats, desk_load_of
from specialist.service.reply import report_of

PREEMPTING_SECONDS = 1.0
"""A replica counts as preempting for so long after somebody gave way."""
_GLANCE_SECONDS = 0.05
"""Between two looks at the desk: what it says is worth some arithmetic."""


class LoadBoard:
    """Belongs to the event loop."""

    def __init__(
        self,
        revision: str,
        adapters: Adapters,
        desk: Desk,
        clock: Clock,
        seats: Seats,
        load: Load,
        *,
        max_watchers: int,
        instance: str = "",
    ) -> None:
        """`instance` is this process's own."""
        self._instance = instance
        self._revision = revision
        self._adapters = adapters
        self._desk = desk
        self._glance: DeskLoad | None = None
        self._glanced_at = -inf
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

    def report(self) -> wire.LoadReport:
        at = self._load.preempted_at
        preempting = at is not None and self._clock.now() - at < PREEMPTING_SECONDS
        report = report_of(
            self._load,
            self._adapters.names(),
            self.seats,
            self._look(),
            preempting=preempting,
            draining=self.draining,
        )
        report.revision = self._revision
        report.instance = self._instance
        return report

    def _look(self) -> DeskLoad:
        now = self._clock.now()
        if self._glance is None or now - self._glanced_at >= _GLANCE_SECONDS:
            self._glance, self._glanced_at = desk_load_of(self._desk, now), now
        return self._glance


class Watch:
    """One watcher: hears of every change, and of many at once when it is slow."""

    def __init__(self, board: LoadBoard, heartbeat: float = inf) -> None:
        """After `heartbeat` seconds without a change it hears that nothing has changed."""
        self._board = board
        self._heartbeat = heartbeat
        self._event = asyncio.Event()
        self._last: wire.LoadReport | None = None
        self._told_at = 0.0

    def __enter__(self) -> "Watch":
        """Raises Refusal."""
        self._board.admit(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        self._board.watchers.discard(self._event)

    async def next(self) -> wire.LoadReport | None:
        """A report that differs from the last one, or is due; None when none will come."""
        now = asyncio.get_running_loop().time
        due = self._told_at + self._heartbeat
        while (report := self._board.report()) == self._last:
            if self._board.closed.is_set():
                return None
            if now() >= due:
                break
            # Preempting and refusing end by themselves: nothing happens that would wake anybody.
            passing = report.preempting or report.refusing
            await self._wait(min(due - now(), PREEMPTING_SECONDS if passing else inf))
        if self._last is not None and mishap("report.stale"):
            report = self._last
        self._last, self._told_at = report, now()
        return report

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == inf else seconds):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()
