"""One attempt at a job on this router: serve it like any request and record the answer as it streams."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from octet.background import cancel_tasks
from octet.config.ensemble import JobsConfig
from octet.rpc.refusal import Refusal, deadline_exceeded, internal_error
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as inference
from octet.v1 import jobs_pb2 as wire
from router.answers import ChunkCollector
from router.receipts import RECEIPT_METADATA_KEY
from router.request import CallerIdentity, use_caller
from router.serving import RequestServer
from router.store.jobs import EndedStatus, JobEnding, JobRow, JobTable, JobWrite, RunJobs
from router.store.rows import StoreUnavailable

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FLUSH_SECONDS = 0.25
_MAX_FLUSHES = 1000  # approximate maximum number of events of an answer: the flush interval grows with its duration
_STORE_RETRY_SECONDS = 0.5
_FIRST_RETRY_SECONDS = 0.5
_LONGEST_RETRY_SECONDS = 30.0
_MAX_RETRY_AFTER_SECONDS = 120.0
_MAX_DOUBLINGS = 8
_RETRYABLE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


@dataclass(slots=True)
class JobCounters:
    submitted: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # by status; without jobs that callers cancelled by job id


@dataclass(frozen=True, slots=True)
class JobContext:
    jobs: RunJobs
    server: RequestServer
    config: JobsConfig
    chance: Callable[[], float]  # draws from [0, 1)
    notify: Callable[[str], None]  # called with the id of a job for which the store has new events
    counters: JobCounters = field(default_factory=JobCounters)


class JobAttempt:
    def __init__(self, row: JobRow, context: JobContext) -> None:
        self.row = row
        self._context = context
        self._num_written = row.events
        self._unwritten = ChunkCollector()
        self._num_bytes = 0
        self._has_started = False
        self._must_write_start = False
        self._is_lost = False
        self._is_abandoned = False
        self._is_too_long = False
        self._receipt: inference.Receipt | None = None
        self._pending: JobWrite | None = None  # a write whose outcome is unknown
        self._write_lock = asyncio.Lock()
        self._serving: asyncio.Task[None] | None = None

    @property
    def lease(self) -> tuple[str, int]:
        return self.row.id, self.row.epoch

    def lose(self) -> None:
        """Stop, and write nothing more: the job was taken over or has ended."""
        self._is_lost = True
        self.abandon()

    def abandon(self) -> None:
        """Stop the attempt, or prevent it. `run` then releases the job unless it was lost or its answer is too long."""
        self._is_abandoned = True
        if self._serving is not None:
            self._serving.cancel()

    async def run(self) -> None:
        if self._seconds_left() <= 0:
            await self._end("failed", deadline_exceeded())
            return
        if self.row.lost >= self._context.config.attempts:
            times, reason = self.row.lost, error_pb2.ERROR_REASON_ENGINE_FAILED
            message = f"the router or replica serving the job was lost {times} times"
            await self._end("failed", Refusal(reason, message, limit=f"fewer than {times} lost routers or replicas"))
            return
        if self._is_abandoned:
            if not self._is_lost:
                await self._release(0.0, lost=False)
            return
        self._serving = asyncio.create_task(self._serve())
        flushing = asyncio.create_task(self._keep_flushing())
        try:
            await asyncio.wait({self._serving})
        finally:
            await cancel_tasks(self._serving, flushing)
        if not self._is_lost:
            await self._settle(self._serving)

    def _seconds_left(self) -> float:
        return (self.row.deadline_ms - self._context.server.wall_ms()) / 1000

    async def _serve(self) -> None:
        """Serve the job as its caller. Raises Refusal, for example if the key was revoked or has no tokens left."""
        row = self.row
        request = inference.InferRequest.FromString(row.request)
        request.request_id = f"{row.id}-{row.epoch}"
        request.ClearField("timeout_ms")
        request.ClearField("ticket")
        request.ClearField("wait_ms")
        caller, server = CallerIdentity(row.tenant, row.caller), self._context.server
        server.gate.check_still_valid(caller)
        with use_caller(caller):
            seconds = self._seconds_left()  # any router may make the next attempt, so a ticket would be lost
            answering = server.answer(request, seconds, (None, ""), self._receive, wants_ticket=False)
        await answering

    async def _receive(self, raw: bytes) -> None:
        event = inference.InferEvent.FromString(raw)
        if event.HasField("chunk"):
            before = self._unwritten.num_bytes
            self._unwritten.add(event.chunk)
            self._num_bytes += self._unwritten.num_bytes - before
            if self._num_bytes > self._context.config.answer_bytes and not self._is_too_long:
                self._is_too_long = True
                self.abandon()
        elif event.HasField("routed"):
            self._receipt = event.routed
            self._must_write_start = self._must_write_start or not self._has_started
            self._has_started = True
        else:
            self._receipt = event.receipt

    async def _keep_flushing(self) -> None:
        began = self._context.server.clock.now()
        while True:
            await asyncio.sleep(max(_FLUSH_SECONDS, (self._context.server.clock.now() - began) / _MAX_FLUSHES))
            if not await self._flush():
                self.lose()
                return

    async def _settle(self, serving: "asyncio.Task[None]") -> None:
        if self._is_too_long:
            await self._end("failed", _answer_too_long(self._context.config.answer_bytes))
        elif serving.cancelled():
            await self._release(0.0, lost=False)
        elif (error := serving.exception()) is None:
            await self._end("done", None)
        elif isinstance(error, Refusal):
            await self._handle_refusal(error)
        else:
            _log.error("%s failed", self.row.id, exc_info=error)
            await self._end("failed", internal_error("the router"))

    async def _handle_refusal(self, refusal: Refusal) -> None:
        """Release the job to be retried, or end it. Once its answer has started, it is retried only a few times."""
        row, receipt = self.row, dict(refusal.extra_metadata).get(RECEIPT_METADATA_KEY)
        if receipt is not None:
            self._receipt = inference.Receipt.FromString(receipt)
        seconds = retry_delay(refusal, row.epoch // 2, self._context.chance())
        if seconds is None or (self._has_started and row.lost + 1 >= self._context.config.attempts):
            is_cancelled = refusal.error.reason == error_pb2.ERROR_REASON_CANCELLED
            await self._end("cancelled" if is_cancelled else "failed", refusal)
        else:
            await self._release(seconds, lost=self._has_started)

    async def _release(self, seconds: float, *, lost: bool) -> None:
        """Let any router claim the job after `seconds`, or at its deadline if that is earlier."""
        row, context = self.row, self._context
        if not await self._flush():
            return
        # 0 means due for every router, whatever its clock says
        due_ms = min(row.deadline_ms, context.server.wall_ms() + round(seconds * 1000)) if seconds else 0
        await self._on_table(lambda table: table.release(row.id, row.epoch, due_ms, lost=lost))

    async def _end(self, status: EndedStatus, refusal: Refusal | None) -> None:
        result = wire.Job(receipt=self._receipt, error=None if refusal is None else refusal.error)
        if await self._write(JobEnding(status, self._context.server.wall_ms(), result.SerializeToString())):
            self._context.counters.ended[status] += 1

    async def _flush(self) -> bool:
        """Write the events that have arrived, if any. Return False if the job was taken over or has ended."""
        return not (self._must_write_start or self._unwritten.num_bytes) or await self._write()

    async def _write(self, ends: JobEnding | None = None) -> bool:
        async with self._write_lock:
            if self._pending is not None and not await self._commit(self._pending):
                return False
            return await self._commit(self._next_write(ends))

    def _next_write(self, ends: JobEnding | None) -> JobWrite:
        row, begins_ms = self.row, self._context.server.wall_ms() if self._must_write_start else None
        events = []
        if begins_ms is not None and row.attempts:
            events.append(wire.JobEvent(restarted=wire.Restarted(attempt=row.attempts + 1)))
        elif begins_ms is not None:
            job = wire.Job(id=row.id, status=wire.JOB_STATUS_RUNNING, submitted_unix_ms=row.submitted_ms, attempts=1)
            job.started_unix_ms = begins_ms
            events.append(wire.JobEvent(status=job))
        if self._unwritten.num_bytes:
            events.append(wire.JobEvent(chunk=self._unwritten.chunk()))
        self._unwritten, self._must_write_start = ChunkCollector(), False
        written = [event.SerializeToString() for event in events]
        self._pending = JobWrite(row.id, row.epoch, self._num_written, written, begins_ms, ends)
        return self._pending

    async def _commit(self, write: JobWrite) -> bool:
        made = await self._on_table(lambda table: table.write(write))
        self._pending = None
        self._num_written += len(write.events) + (write.ends is not None)
        self._context.notify(self.row.id)
        return made

    async def _on_table(self, call: Callable[[JobTable], T]) -> T:
        """Repeat the call until the store answers."""
        while True:
            try:
                return await self._context.jobs(call)
            except StoreUnavailable:
                await asyncio.sleep(_STORE_RETRY_SECONDS)


def retry_delay(refusal: Refusal, times: int, chance: float) -> float | None:
    """Return the seconds until the next attempt; None if the refusal is final. `times` is the number of earlier
    attempts. `chance`, a random number in [0, 1), spreads the retries of different jobs."""
    error = refusal.error
    is_lost = error.reason == error_pb2.ERROR_REASON_REPLICA_LOST  # its retry time is only for interactive callers
    has_time = error.HasField("retry_after_ms") and not is_lost
    is_unreachable = error.reason == error_pb2.ERROR_REASON_DEADLINE_UNREACHABLE
    if refusal.code not in _RETRYABLE or (is_unreachable and not has_time):
        return None
    if has_time:
        retry_after: float = error.retry_after_ms / 1000
        return min(_MAX_RETRY_AFTER_SECONDS, retry_after)
    longest: float = min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2 ** min(times, _MAX_DOUBLINGS))
    return longest * (1 + chance) / 2


def _answer_too_long(most: int) -> Refusal:
    message = f"the answer exceeds {most:,} bytes, the most that is stored for a job, and was cut off"
    limit, code = f"an answer of at most {most:,} bytes", grpc.StatusCode.OUT_OF_RANGE
    return Refusal(error_pb2.ERROR_REASON_INVALID_FIELD, message, code=code, field="max_tokens", limit=limit)
