"""The hands of one router: takes jobs, gives signs of life for them, and takes over those of routers that give none."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from octet.store import StoreUnavailable
from octet.store.job_rows import JobLimits, JobRow, Sight
from router.background import for_good
from router.jobs.attempt import Attempt, Means
from router.jobs.leases import Leases
from router.jobs.watchers import Watchers

_log = logging.getLogger(__name__)
TICK_SECONDS = 0.25
_BEATS = 4
"""In a lease, at least."""
PRUNE_SECONDS = 15.0
_LATE_AT_ONCE = 4096
_LAST_SECONDS = 5.0
"""For what was told to end to be on record."""


class Workers:
    """Belongs to the event loop."""

    def __init__(self, means: Means, watchers: Watchers, new_token: Callable[[], str]) -> None:
        self._means = means
        self._watchers = watchers
        self._new_token = new_token
        self._leases = Leases(means.config.lease)
        self._attempts: dict[str, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kicked = asyncio.Event()
        self._turning: asyncio.Task[None] | None = None
        self._token = new_token()
        """Of the next claim: kept until it is known what became of it."""
        self._is_draining = False
        self._next_beat = self._next_prune = 0.0

    def __len__(self) -> int:
        return len(self._attempts)

    def start(self) -> None:
        self._turning = for_good(self._run, "answering jobs")

    def kick(self) -> None:
        """There is something to do for certain."""
        self._kicked.set()

    def lose(self, job_id: str) -> None:
        """It has ended, by somebody's order."""
        attempt = self._attempts.get(job_id)
        if attempt is not None:
            attempt.lose()

    async def drain(self) -> None:
        """Takes nothing more, and leaves what it has to whoever takes it next."""
        self._is_draining = True
        for attempt in self._attempts.values():
            attempt.give_up()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_SECONDS)

    async def close(self) -> None:
        await self.drain()
        tasks = [*self._tasks, *(() if self._turning is None else (self._turning,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._kicked.clear()
            try:
                await self._turn()
            except StoreUnavailable as error:  # the store tells of its trouble itself
                _log.debug("the jobs cannot be looked at: %s", error)
            try:
                async with asyncio.timeout(min(TICK_SECONDS, self._means.config.lease / _BEATS)):
                    await self._kicked.wait()
            except TimeoutError:
                continue

    async def _turn(self) -> None:
        means, watched = self._means, self._watchers.ids
        sight = await means.store.look(means.wall_ms(), watched)
        self._watchers.see(watched, sight.heads)
        await self._beat()
        await self._take_over(sight)
        if sight.is_late:
            await self._claim(_LATE_AT_ONCE, late=True)
        if sight.waits:
            await self._claim(means.config.concurrency)
        if means.clock.now() >= self._next_prune:
            config = means.config
            limits = JobLimits(round(config.keep * 1000), config.kept, config.kept_bytes)
            more = await means.store.prune(limits, means.wall_ms())
            self._next_prune = means.clock.now() + (0.0 if more else PRUNE_SECONDS)

    async def _beat(self) -> None:
        now = self._means.clock.now()
        if now < self._next_beat or not self._attempts:
            return
        mine = [attempt.place for attempt in self._attempts.values()]
        held = await self._means.store.beat(mine)
        self._next_beat = now + self._means.config.lease / _BEATS
        for job_id, epoch in mine:
            attempt = self._attempts.get(job_id)
            if job_id not in held and attempt is not None and attempt.row.epoch == epoch:
                attempt.lose()

    async def _take_over(self, sight: Sight) -> None:
        stale = self._leases.observe(sight.held, self._attempts.keys(), self._means.clock.now())
        if stale:
            _log.warning("nobody answers %s any more: begun anew", ", ".join(each.id for each in stale))
            await self._means.store.take_away(stale)
            self.kick()

    async def _claim(self, most: int, *, late: bool = False) -> None:
        """Until there are so many, or none is left. Those that are late take no more than to be told so."""
        while len(self._attempts) < most and not self._is_draining:
            row = await self._means.store.claim(self._token, self._means.wall_ms(), late=late)
            self._token = self._new_token()
            if row is None:
                return
            self._begin(row)

    def _begin(self, row: JobRow) -> None:
        attempt = self._attempts[row.id] = Attempt(row, self._means)
        task = asyncio.create_task(attempt.run(), name=f"job {row.id}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, attempt))
        if self._is_draining:
            attempt.give_up()

    def _ended(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._attempts.get(attempt.row.id) is attempt:
            del self._attempts[attempt.row.id]
        if not task.cancelled() and task.exception() is not None:
            _log.critical("%s was left alone", attempt.row.id, exc_info=task.exception())
        self.kick()
