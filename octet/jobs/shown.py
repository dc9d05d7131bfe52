"""Jobs for people."""

from collections.abc import Sequence
from datetime import datetime

from octet.operate.figures import duration, since
from octet.operate.table import table
from octet.sdk.job import Job

_HEADING = ("job", "status", "submitted", "took", "attempts", "error")
_LABEL = 11


def listed(jobs: Sequence[Job]) -> str:
    return table(_HEADING, [_row(each) for each in jobs]) if jobs else "there are no jobs"


def told(job: Job) -> str:
    """One job, and what it has said."""
    rows = {
        "job": job.id,
        "status": job.status + (", cut off" if job.partial else ""),
        "submitted": _at(job.submitted_at),
        "started": _at(job.started_at),
        "ended": _at(job.ended_at),
        "attempts": str(job.attempts) if job.attempts > 1 else "",
        "specialist": "" if job.receipt is None else job.receipt.specialist,
        "why": "" if job.receipt is None else job.receipt.why,
        "validation": "" if job.validation is None else f"{job.validation.outcome} by {job.validation.verifier}",
        "error": "" if job.error is None else f"{job.error.reason}: {job.error.message}",
    }
    lines = [f"{label:<{_LABEL}} {text}" for label, text in rows.items() if text]
    return "\n".join([*lines, *(["", job.text] if job.text else [])])


def _row(job: Job) -> tuple[str, ...]:
    took = "" if job.started_at is None or job.ended_at is None else _seconds(job.started_at, job.ended_at)
    return (
        job.id,
        job.status,
        since(round(job.submitted_at.timestamp() * 1000)),
        took,
        str(job.attempts),
        "" if job.error is None else job.error.reason,
    )


def _seconds(begin: datetime, end: datetime) -> str:
    return duration((end - begin).total_seconds())


def _at(time: datetime | None) -> str:
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"
