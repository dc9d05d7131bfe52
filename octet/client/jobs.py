"""Background jobs: records, request messages, event watching."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack

import grpc

from octet.client import errors
from octet.client.answer import Chunk
from octet.client.base import LOOKUP_TIMEOUT_S, ClientBase
from octet.client.channel import call_error
from octet.client.options import Options
from octet.client.receipts import ErrorDetails, Receipt
from octet.client.records import ToolCall, Validation
from octet.client.request import build_message, check_timeout, prepare_request
from octet.client.wire_record import WireRecord
from octet.v1 import jobs_pb2 as proto

if TYPE_CHECKING:
    from octet.client.clients import AsyncClient, Client

MAX_OUTAGE_S = 60.0  # maximum time without a router before a watch without a timeout gives up
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_FIRST_TIME = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LAST_TIME = datetime(9999, 12, 30, tzinfo=UTC).timestamp()

JobStatus = Literal["queued", "running", "done", "failed", "cancelled"]
_FINAL = ("done", "failed", "cancelled")


def to_datetime(unix_ms: int) -> datetime:
    """Convert a time, for display only. A time out of range becomes the first or last that can be displayed."""
    return datetime.fromtimestamp(min(max(unix_ms / 1000, _FIRST_TIME), _LAST_TIME), UTC)


class Job(WireRecord):
    READERS = MappingProxyType(
        {
            "submitted_at": lambda job: to_datetime(job.submitted_unix_ms),
            "started_at": lambda job: to_datetime(job.started_unix_ms) if job.HasField("started_unix_ms") else None,
            "ended_at": lambda job: to_datetime(job.ended_unix_ms) if job.HasField("ended_unix_ms") else None,
            "wire": lambda job: job,
        }
    )

    id: str
    status: JobStatus
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    text: str  # the answer, or the answer so far until the job ends. Lists of jobs leave it out.
    tool_calls: tuple[ToolCall, ...]
    partial: bool  # whether the answer was cut off; the text holds the part that was generated
    error: ErrorDetails | None  # why the job failed
    receipt: Receipt | None  # receipt of the last attempt
    attempts: int  # how often the job was started; more than once if a router or a replica stopped in between
    estimated_wait_ms: int | None  # until a queued job starts; None if no rate was measured
    wire: proto.Job = field(repr=False, compare=False)  # the message itself

    @property
    def has_ended(self) -> bool:
        return self.status in _FINAL

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended; None unless the answer is complete."""
        usage = None if self.receipt is None else self.receipt.usage
        return None if self.status != "done" or usage is None else usage.finish_reason

    @property
    def validation(self) -> Validation | None:
        return None if self.receipt is None else self.receipt.validation

    def to_dict(self) -> dict[str, Any]:
        validation = None if self.validation is None else self.validation.to_dict()
        return {**WireRecord.to_dict(self), "finish_reason": self.finish_reason, "validation": validation}


@dataclass(frozen=True, slots=True)
class JobEvent:
    number: int  # starts at 1, without gaps. All watchers see the same numbers.
    job: Job | None = None  # the job with its new status. A final status is the last event.
    chunk: Chunk | None = None  # the next part of the answer
    restarted: int | None = None  # the number of the new attempt; earlier chunks are void

    @property
    def kind(self) -> Literal["status", "chunk", "restarted"]:
        return "status" if self.job is not None else "chunk" if self.chunk is not None else "restarted"

    @property
    def is_last(self) -> bool:
        return self.job is not None and self.job.has_ended

    @classmethod
    def from_wire(cls, message: proto.JobEvent) -> "JobEvent":
        match message.WhichOneof("event"):
            case "status":
                return cls(message.number, job=Job.from_wire(message.status))
            case "chunk":
                return cls(message.number, chunk=Chunk.from_wire(message.chunk))
            case _:
                return cls(message.number, restarted=message.restarted.attempt)


def _submission(prompt: str | None, options: Mapping[str, Any], idempotency_key: str | None) -> proto.SubmitJobRequest:
    """Build the message, always with an idempotency key, so that a retried submission is still one job."""
    prepared = prepare_request(prompt, options)
    prepared.set_timeouts(prepared.timeouts)
    values = {"request": prepared.message, "idempotency_key": idempotency_key or os.urandom(16).hex()}
    message: proto.SubmitJobRequest = build_message(proto.SubmitJobRequest, values)
    return message


class JobWatch:
    """Watches the events of a job across reconnects. It never sleeps, so blocking and asyncio clients share it."""

    def __init__(self, client: ClientBase, job_id: str, after: int, timeout: float | None) -> None:
        self._client = client
        self._id = job_id
        self._after = after
        self._now = client._clock.now
        self._end = None if (seconds := check_timeout(timeout)) is None else self._now() + seconds
        self._last_event_at = self._now()
        self._pause = _FIRST_PAUSE_S

    def open(self) -> Any:
        """Open a call for the events after the last one received. Raises Cancelled if the client is closed."""
        if self._client._is_closed():
            raise errors.closed_error("")
        message = build_message(proto.WatchJobRequest, {"id": self._id, "after": self._after})
        left = None if self._end is None else max(0.0, self._end - self._now())
        return self._client._method("Jobs.WatchJob")(message, timeout=left)

    def read(self, message: proto.JobEvent) -> JobEvent:
        self._after = message.number
        self._last_event_at = self._now()
        self._pause = _FIRST_PAUSE_S
        return JobEvent.from_wire(message)

    def fail(self, error: Any) -> float:
        """Return the seconds until the watch reconnects. Raises OctetError if it gives up."""
        problem = self._client._error(error)
        if errors.is_unexplained_cancel(problem) and self._client._is_closed():
            raise errors.closed_error("") from None
        wait = self._pause if problem.retry_after is None else problem.retry_after
        self._pause = min(_LONGEST_PAUSE_S, 2 * self._pause)
        end = self._last_event_at + MAX_OUTAGE_S if self._end is None else self._end
        may_reconnect = isinstance(problem, errors.Busy | errors.Unavailable | errors.ReplicaLost)
        if not may_reconnect or self._now() + wait >= end:
            raise problem from None
        return wait


def _final_job(event: JobEvent | None) -> Job:
    if event is None or event.job is None or not event.is_last:
        raise errors.OctetError("the events ended before the job did", code=grpc.StatusCode.DATA_LOSS)
    return event.job


class JobsClient:
    """A client for background jobs, which continue if the caller disconnects or the router restarts."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def submit(
        self, prompt: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[Options]
    ) -> Job:
        """Store a job and return it. A stored job ends exactly once, even if the router restarts. The option `timeout`
        applies to the job, not to this call. A second submission with the same `idempotency_key` returns the first job,
        or is refused if the requests differ."""
        attempts = self._client._repeat(_submission(prompt, options, idempotency_key), LOOKUP_TIMEOUT_S)
        return Job.from_wire(self._client._call("Jobs.SubmitJob", attempts))

    def get(self, job_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S) -> Job:
        """Return a job; it is kept for a limited time. Operators may name another `tenant`. Raises NotFound."""
        return Job.from_wire(self._client._look_up("Jobs.GetJob", timeout, id=job_id, tenant=tenant))

    def list(
        self, limit: int | None = None, before: str = "", *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S
    ) -> tuple[Job, ...]:
        """List your own jobs, newest first, without their text; with `before`, only jobs older than that one. An
        operator may name another `tenant`."""
        found = self._client._look_up("Jobs.ListJobs", timeout, limit=limit, before=before, tenant=tenant)
        return tuple(map(Job.from_wire, found.jobs))

    def cancel(self, job_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S) -> Job:
        """Cancel the job unless it has ended, and return its final state. Raises NotFound for an unknown job."""
        return Job.from_wire(self._client._look_up("Jobs.CancelJob", timeout, id=job_id, tenant=tenant))

    def events(self, job_id: str, after: int = 0, *, timeout: float | None = None) -> Generator[JobEvent, None, None]:
        """Yield all events after number `after` until the job ends. If the router restarts, the watch reconnects.
        Raises NotFound, or DeadlineExceeded after `timeout` seconds."""
        watch = JobWatch(self._client, job_id, after, timeout)
        while True:
            call = watch.open()
            try:
                for received in call:
                    event = watch.read(received)
                    yield event
                    if event.is_last:
                        return
                return
            except grpc.RpcError as error:
                wait = watch.fail(error)
            finally:
                call.cancel()
            time.sleep(wait)

    def wait(self, job_id: str, timeout: float | None = None) -> Job:
        """Wait until the job has ended, and return it. Raises NotFound, or DeadlineExceeded after `timeout` seconds."""
        last = None
        for event in self.events(job_id, timeout=timeout):
            last = event
        return _final_job(last)


class AsyncJobsClient:
    """Like `JobsClient`, for asyncio."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    async def submit(
        self, prompt: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[Options]
    ) -> Job:
        attempts = self._client._repeat(_submission(prompt, options, idempotency_key), LOOKUP_TIMEOUT_S)
        return Job.from_wire(await self._client._call("Jobs.SubmitJob", attempts))

    async def get(self, job_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S) -> Job:
        return Job.from_wire(await self._client._look_up("Jobs.GetJob", timeout, id=job_id, tenant=tenant))

    async def list(
        self, limit: int | None = None, before: str = "", *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S
    ) -> tuple[Job, ...]:
        found = await self._client._look_up("Jobs.ListJobs", timeout, limit=limit, before=before, tenant=tenant)
        return tuple(map(Job.from_wire, found.jobs))

    async def cancel(self, job_id: str, *, tenant: str = "", timeout: float | None = LOOKUP_TIMEOUT_S) -> Job:
        return Job.from_wire(await self._client._look_up("Jobs.CancelJob", timeout, id=job_id, tenant=tenant))

    async def events(
        self, job_id: str, after: int = 0, *, timeout: float | None = None
    ) -> AsyncGenerator[JobEvent, None]:
        watch = JobWatch(self._client, job_id, after, timeout)
        while True:
            call = watch.open()
            try:
                async for received in call:
                    event = watch.read(received)
                    yield event
                    if event.is_last:
                        return
                return
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                wait = watch.fail(call_error(call, error))
            finally:
                call.cancel()
            await asyncio.sleep(wait)

    async def wait(self, job_id: str, timeout: float | None = None) -> Job:
        last = None
        async for event in self.events(job_id, timeout=timeout):
            last = event
        return _final_job(last)
