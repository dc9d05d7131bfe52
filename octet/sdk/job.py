"""A request that nobody need wait for, as it stands, and what happens to it."""

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, cast

from octet.sdk.answer import Chunk, chunk_from
from octet.sdk.receipt import ErrorDetails, Receipt, Validation, error_from, word
from octet.sdk.tools import ToolCall
from octet.v1 import jobs_pb2 as proto

JobStatus = Literal["queued", "running", "done", "failed", "cancelled"]
_FINAL = ("done", "failed", "cancelled")
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC).timestamp(), datetime(9999, 12, 30, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    status: JobStatus
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    text: str
    """Until it has ended: what has been said so far. A list of jobs leaves it out."""
    tool_calls: tuple[ToolCall, ...]
    partial: bool
    """It was cut off: the text is what had been said until then."""
    error: ErrorDetails | None
    """Why it failed."""
    receipt: Receipt | None
    """Of the last attempt."""
    attempts: int
    """Times it was begun: more than one where a router or a replica ended in between."""
    wire: proto.Job = field(repr=False, compare=False)
    """The message itself."""

    @property
    def has_ended(self) -> bool:
        return self.status in _FINAL

    @property
    def finish_reason(self) -> str | None:
        """Of an answer that is whole."""
        usage = None if self.receipt is None else self.receipt.usage
        return None if self.status != "done" or usage is None else usage.finish_reason

    @property
    def validation(self) -> Validation | None:
        return None if self.receipt is None else self.receipt.validation

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "id": self.id,
            "status": self.status,
            "submitted_at": self.submitted_at.isoformat(),
            "started_at": _written(self.started_at),
            "ended_at": _written(self.ended_at),
            "text": self.text,
            "tool_calls": [asdict(each) for each in self.tool_calls],
            "partial": self.partial,
            "error": None if self.error is None else asdict(self.error),
            "finish_reason": self.finish_reason,
            "validation": None if self.validation is None else asdict(self.validation),
            "receipt": None if self.receipt is None else self.receipt.to_dict(),
            "attempts": self.attempts,
        }

    @classmethod
    def from_wire(cls, message: proto.Job) -> "Job":
        return cls(
            id=message.id,
            status=cast(JobStatus, word(proto.JobStatus, message.status, "JOB_STATUS_")),
            submitted_at=_time(message.submitted_unix_ms),
            started_at=_time(message.started_unix_ms) if message.HasField("started_unix_ms") else None,
            ended_at=_time(message.ended_unix_ms) if message.HasField("ended_unix_ms") else None,
            text=message.text,
            tool_calls=tuple(ToolCall.from_wire(each) for each in message.tool_calls),
            partial=message.partial,
            error=error_from(message.error) if message.HasField("error") else None,
            receipt=Receipt.from_wire(message.receipt) if message.HasField("receipt") else None,
            attempts=message.attempts,
            wire=message,
        )


@dataclass(frozen=True, slots=True)
class JobEvent:
    number: int
    """From 1, without gaps; the same event has the same number for everybody who watches."""
    job: Job | None = None
    """It has a new status. After one that is final nothing comes."""
    chunk: Chunk | None = None
    """More of the answer."""
    restarted: int | None = None
    """It begins anew, for the so manieth time: what was said before does not count."""

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
                return cls(message.number, chunk=chunk_from(message.chunk))
            case _:
                return cls(message.number, restarted=message.restarted.attempt)


def _time(unix_ms: int) -> datetime:
    """What no calendar holds becomes its first or last day: it is shown, and never computed with."""
    return datetime.fromtimestamp(min(max(unix_ms / 1000, _FIRST), _LAST), UTC)


def _written(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
