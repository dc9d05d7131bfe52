"""A job as callers are told of it, from what is kept."""

from collections.abc import Iterable

from octet.store.job_rows import JobRow
from octet.v1 import jobs_pb2 as wire
from router.said import Said

_STATUS = {
    "queued": wire.JOB_STATUS_QUEUED,
    "running": wire.JOB_STATUS_RUNNING,
    "done": wire.JOB_STATUS_DONE,
    "failed": wire.JOB_STATUS_FAILED,
    "cancelled": wire.JOB_STATUS_CANCELLED,
}


def brief(row: JobRow) -> wire.Job:
    """Without what it said, and without its receipt."""
    job = wire.Job.FromString(row.result)
    job.ClearField("receipt")
    return _headed(job, row)


def whole(row: JobRow, events: Iterable[tuple[int, bytes]]) -> wire.Job:
    """With what the events up to the row's last tell."""
    said = Said()
    for number, raw in events:
        event = wire.JobEvent.FromString(raw)
        if number > row.events:
            break
        if event.HasField("restarted"):
            said = Said()
        elif event.HasField("chunk"):
            said.hear(event.chunk)
    job = _headed(wire.Job.FromString(row.result), row)
    job.text = said.text
    job.tool_calls.extend(said.tool_calls)
    return job


def begun(row: JobRow, now_ms: int) -> wire.JobEvent:
    """The event of a job that is begun now."""
    if row.attempts:
        return wire.JobEvent(restarted=wire.Restarted(attempt=row.attempts + 1))
    job = wire.Job(id=row.id, status=wire.JOB_STATUS_RUNNING, submitted_unix_ms=row.submitted_ms, attempts=1)
    job.started_unix_ms = now_ms
    return wire.JobEvent(status=job)


def submitted(job_id: str, now_ms: int) -> wire.JobEvent:
    return wire.JobEvent(status=wire.Job(id=job_id, status=wire.JOB_STATUS_QUEUED, submitted_unix_ms=now_ms))


def _headed(job: wire.Job, row: JobRow) -> wire.Job:
    job.id = row.id
    job.status = _STATUS[row.status]
    job.submitted_unix_ms = row.submitted_ms
    job.attempts = row.attempts
    if row.started_ms is not None:
        job.started_unix_ms = row.started_ms
    if row.ended_ms is not None:
        job.ended_unix_ms = row.ended_ms
    job.partial = row.status in ("failed", "cancelled") and row.attempts > 0
    return job
