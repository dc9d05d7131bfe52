"""What the calls about jobs say and hear, without any input or output: what sync and async do alike."""

import os
from collections.abc import Mapping
from typing import Any

import grpc

from octet.clock import Clock
from octet.sdk.errors import Busy, OctetError, ReplicaLost, Unavailable
from octet.sdk.faults import closed, invalid, is_unsaid_cancel, typed
from octet.sdk.job import Job, JobEvent
from octet.sdk.request import check_timeout, prepare
from octet.sdk.retry import Left
from octet.v1 import jobs_pb2 as wire

SERVICE = "/octet.v1.Jobs/"
PATIENCE_S = 60.0
"""So long a router may be gone before whoever watches a job gives up, where no timeout was given."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


def submission(prompt: str | None, options: Mapping[str, Any], idempotency_key: str | None) -> wire.SubmitJobRequest:
    """With a key in any case: a submission whose answer was lost is made again, and is still one job. Raises
    InvalidRequest, TypeError."""
    prepared = prepare(prompt, options)
    prepared.allow(Left(prepared.timeout, prepared.first_timeout))
    message = wire.SubmitJobRequest(request=prepared.message)
    message.idempotency_key = _text("idempotency_key", idempotency_key or os.urandom(16).hex())
    return message


def listing(limit: int | None, before: str, tenant: str) -> wire.ListJobsRequest:
    message = wire.ListJobsRequest(before=_text("before", before), tenant=_text("tenant", tenant))
    try:
        if limit is not None:
            message.limit = limit
    except (TypeError, ValueError):
        raise invalid("limit", "a whole number of 64 bits", repr(limit)) from None
    return message


def named(kind: Any, job_id: str, tenant: str) -> Any:
    """A message that is nothing but the id of a job, and whose it is."""
    return kind(id=_text("id", job_id), tenant=_text("tenant", tenant))


def _text(field: str, value: str) -> str:
    try:
        wire.GetJobRequest(id=value)
    except (TypeError, ValueError, UnicodeError):
        raise invalid(field, "text that can be written as UTF-8", repr(value)[:60]) from None
    return value


class Watching:
    """One reader of a job's events, across as many connections as it takes."""

    def __init__(self, job_id: str, after: int, timeout: float | None, clock: Clock, address: str) -> None:
        self._id = _text("id", job_id)
        self._after = after
        self._clock = clock
        self._address = address
        self._end = None if (seconds := check_timeout(timeout)) is None else clock.now() + seconds
        self._heard_at = clock.now()
        self._pause = _FIRST_PAUSE_S

    def attempt(self, *, is_closed: bool) -> tuple[wire.WatchJobRequest, float | None]:
        """What to send, and the seconds gRPC may take for it. Raises Cancelled when the client is closed."""
        if is_closed:
            raise closed("")
        try:
            message = wire.WatchJobRequest(id=self._id, after=self._after)
        except (TypeError, ValueError):
            raise invalid("after", "the number of an event", repr(self._after)[:60]) from None
        return message, None if self._end is None else max(0.0, self._end - self._clock.now())

    def hear(self, message: wire.JobEvent) -> JobEvent:
        self._after = message.number
        self._heard_at = self._clock.now()
        self._pause = _FIRST_PAUSE_S
        return JobEvent.from_wire(message)

    def failed(self, error: Any, *, is_closed: bool) -> float:
        """Seconds until the stream is taken up where it ended. Raises OctetError when it is not."""
        problem = typed(error, address=self._address)
        if is_unsaid_cancel(problem) and is_closed:
            raise closed("") from None
        wait = self._pause if problem.retry_after is None else problem.retry_after
        self._pause = min(_LONGEST_PAUSE_S, 2 * self._pause)
        end = self._heard_at + PATIENCE_S if self._end is None else self._end
        if not isinstance(problem, Busy | Unavailable | ReplicaLost) or self._clock.now() + wait >= end:
            raise problem from None
        return wait


def last_of(event: JobEvent | None) -> Job:
    """The job, as the last event of its stream tells it."""
    if event is None or event.job is None or not event.is_last:
        raise OctetError("the events ended before the job did", code=grpc.StatusCode.DATA_LOSS)
    return event.job
