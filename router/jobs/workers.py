"""Claim jobs, renew their leases, and take over jobs of routers that stopped."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from octet.background import cancel_tasks, run_forever
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from router.jobs.attempt import JobAttempt, JobContext
from router.store.jobs import JobLease, JobProgress, JobRow, JobScan, JobTable
from router.store.rows import StoreUnavailable

_log = logging.getLogger(__name__)
TICK_SECONDS = 0.25
PRUNE_SECONDS = 15.0
_RENEWALS_PER_LEASE = 4
# A lease expires after at least this many scans: in a longer gap between scans, the store may have been down.
_SCANS_PER_LEASE = 4
_MAX_LATE = 4096
_DRAIN_SECONDS = 5.0  # for the last writes of abandoned attempts
_WATCH_RETRY_SECONDS = 5.0
_TENANT_SHARE = 4  # a tenant may hold one in this many of all watchers, and at least one


class JobWorkers:
    def __init__(self, context: JobContext, watchers: "JobWatchers", new_token: Callable[[], str]) -> None:
        self._context = context
        self._watchers = watchers
        self._new_token = new_token
        self._leases = LeaseTracker(context.config.lease)
        self._attempts: dict[str, JobAttempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakeup = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._token = new_token()  # the token of the next claim; kept until the outcome of the claim is known
        self._is_draining = False
        self._next_renewal = self._next_prune = 0.0

    def __len__(self) -> int:
        return len(self._attempts)

    def start(self) -> None:
        self._loop_task = run_forever(self._run, "serving jobs")

    def wake(self) -> None:
        self._wakeup.set()

    def lose(self, job_id: str) -> None:
        attempt = self._attempts.get(job_id)
        if attempt is not None:
            attempt.lose()

    async def drain(self) -> None:
        """Claim nothing more, and release the running jobs to other routers."""
        self._is_draining = True
        for attempt in self._attempts.values():
            attempt.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_DRAIN_SECONDS)

    async def close(self) -> None:
        await self.drain()
        await cancel_tasks(*self._tasks, *(() if self._loop_task is None else (self._loop_task,)))

    async def _run(self) -> None:
        seconds = min(TICK_SECONDS, self._context.config.lease / _RENEWALS_PER_LEASE)
        while True:
            self._wakeup.clear()
            try:
                await self._tick()
            except StoreUnavailable as error:  # the store logs its outages
                _log.debug("jobs cannot be read: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wakeup.wait()

    async def _tick(self) -> None:
        context, watched = self._context, self._watchers.ids
        now_ms = context.server.wall_ms()
        scan = await context.jobs(lambda table: table.scan(now_ms, watched))
        self._watchers.update(watched, scan.progress)
        await self._renew()
        await self._take_over(scan)
        if scan.has_late:
            await self._claim(_MAX_LATE, late=True)
        if scan.has_due:
            await self._claim(context.config.concurrency)
        if context.server.clock.now() >= self._next_prune:
            more = await context.jobs(lambda table: table.prune(context.config, now_ms))
            self._next_prune = context.server.clock.now() + (0.0 if more else PRUNE_SECONDS)

    async def _renew(self) -> None:
        now = self._context.server.clock.now()
        if now < self._next_renewal or not self._attempts:
            return
        leases = [attempt.lease for attempt in self._attempts.values()]
        held = await self._context.jobs(lambda table: table.renew(leases))
        self._next_renewal = now + self._context.config.lease / _RENEWALS_PER_LEASE
        for job_id, epoch in leases:
            attempt = self._attempts.get(job_id)
            if job_id not in held and attempt is not None and attempt.row.epoch == epoch:
                attempt.lose()

    async def _take_over(self, scan: JobScan) -> None:
        expired = self._leases.find_expired(scan.leases, self._attempts.keys(), self._context.server.clock.now())
        if expired:
            _log.warning("the leases of %s have expired: restarting these jobs", ", ".join(each.id for each in expired))
            await self._context.jobs(lambda table: table.revoke(expired))
            self.wake()

    async def _claim(self, most: int, *, late: bool = False) -> None:
        """Claim jobs until this router has `most` or none is left; with `late`, only jobs past their deadline."""
        while len(self._attempts) < most and not self._is_draining:
            now_ms = self._context.server.wall_ms()
            row = await self._context.jobs(partial(JobTable.claim, owner=self._token, now_ms=now_ms, late=late))
            self._token = self._new_token()
            if row is None:
                return
            self._begin(row)

    def _begin(self, row: JobRow) -> None:
        attempt = self._attempts[row.id] = JobAttempt(row, self._context)
        task = asyncio.create_task(attempt.run(), name=f"job {row.id}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._attempt_done, attempt))
        if self._is_draining:
            attempt.abandon()

    def _attempt_done(self, attempt: JobAttempt, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._attempts.get(attempt.row.id) is attempt:
            del self._attempts[attempt.row.id]
        if not task.cancelled() and task.exception() is not None:
            _log.critical("the attempt at %s failed", attempt.row.id, exc_info=task.exception())
        self.wake()


class LeaseTracker:
    """Finds leases that have not been renewed for `seconds`, measured by this router's clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[str, tuple[JobLease, float]] = {}  # each lease with the seconds for which it has not changed
        self._last: float | None = None

    def find_expired(self, leases: Sequence[JobLease], own: Collection[str], now: float) -> list[JobLease]:
        passed = 0.0 if self._last is None else min(max(0.0, now - self._last), self._seconds / _SCANS_PER_LEASE)
        self._last = now
        seen, self._seen = self._seen, {}
        for lease in leases:
            if lease.id not in own:
                before, seconds = seen.get(lease.id, (None, 0.0))
                self._seen[lease.id] = (lease, seconds + passed if before == lease else 0.0)
        return [lease for lease, seconds in self._seen.values() if seconds >= self._seconds]


class JobWatchers:
    """Wakes the callers that watch a job when any router has written new events of the job."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_of_tenant = max(1, most // _TENANT_SHARE)
        self._of_tenant: Counter[str] = Counter()
        self._events: dict[str, list[asyncio.Event]] = {}
        self._progress: dict[str, JobProgress | None] = {}  # the last scanned progress; None if the job does not exist

    def __len__(self) -> int:
        return sum(map(len, self._events.values()))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._events)

    @contextmanager
    def watching(self, job_id: str, tenant: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever the job may have more to read. Raises Refusal if the router or the tenant
        has too many watchers."""
        if len(self) >= self._most:
            raise _too_many_watchers(self._most)
        if tenant and self._of_tenant[tenant] >= self._most_of_tenant:
            raise _too_many_watchers(self._most_of_tenant, " of this tenant")
        changed = asyncio.Event()
        self._events.setdefault(job_id, []).append(changed)
        self._of_tenant[tenant] += 1
        try:
            yield changed
        finally:
            self._of_tenant[tenant] -= 1
            self._of_tenant += Counter()  # drops zero counts
            self._events[job_id].remove(changed)
            if not self._events[job_id]:
                del self._events[job_id]
                self._progress.pop(job_id, None)

    def notify(self, job_id: str) -> None:
        for changed in self._events.get(job_id, ()):
            changed.set()

    def update(self, scanned: Sequence[str], progress: Sequence[JobProgress]) -> None:
        found = {each.id: each for each in progress}
        for job_id in scanned:
            current = found.get(job_id)
            if job_id in self._events and (job_id not in self._progress or self._progress[job_id] != current):
                self._progress[job_id] = current
                self.notify(job_id)


def _too_many_watchers(most: int, scope: str = "") -> Refusal:
    """Return a refusal. Its retry time is an estimate: the router cannot know when a watcher will disconnect."""
    message = f"{most:,} callers{scope} are already watching jobs on this router; poll the job instead"
    limit, reason = f"at most {most:,} callers{scope} at once", error_pb2.ERROR_REASON_QUEUE_FULL
    return Refusal(reason, message, field="watchers", limit=limit, retry_after=_WATCH_RETRY_SECONDS)
