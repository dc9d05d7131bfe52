"""The Python SDK. Needs grpcio and protobuf, nothing else."""

from typing import TYPE_CHECKING, Any

from octet.sdk.answer import Answer, Chunk, TokenCount, TokenLogprobs
from octet.sdk.async_client import AsyncClient, AsyncStream
from octet.sdk.client import Client, Stream
from octet.sdk.conversation import AsyncConversation, Conversation
from octet.sdk.decision import Decision, Score
from octet.sdk.errors import (
    Busy,
    CallerStalled,
    Cancelled,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NoSpecialist,
    NotFound,
    OctetError,
    ReplicaLost,
    ServerError,
    Unauthenticated,
    Unavailable,
)
from octet.sdk.job import Job, JobEvent
from octet.sdk.options import Message, Options
from octet.sdk.receipt import (
    Admission,
    Attempt,
    ErrorDetails,
    Lane,
    Receipt,
    ReplicaTimings,
    Timings,
    Usage,
    Validation,
)
from octet.sdk.structure import Choice, Json, Regex
from octet.sdk.tools import Tool, ToolCall, ToolCallPart, ToolChoice

if TYPE_CHECKING:
    from octet.sdk.operator import Operator

__all__ = [
    "Admission",
    "Answer",
    "AsyncClient",
    "AsyncConversation",
    "AsyncStream",
    "Attempt",
    "Busy",
    "CallerStalled",
    "Cancelled",
    "Choice",
    "Chunk",
    "Client",
    "Conversation",
    "DeadlineExceeded",
    "Decision",
    "ErrorDetails",
    "Forbidden",
    "InvalidRequest",
    "Job",
    "JobEvent",
    "Json",
    "Lane",
    "Message",
    "NoSpecialist",
    "NotFound",
    "OctetError",
    "Operator",
    "Options",
    "Receipt",
    "Regex",
    "ReplicaLost",
    "ReplicaTimings",
    "Score",
    "ServerError",
    "Stream",
    "Timings",
    "TokenCount",
    "TokenLogprobs",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "ToolChoice",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "Validation",
]


def __getattr__(name: str) -> Any:
    """What operators see is loaded when somebody asks for it: it is half of it all, and callers never do."""
    if name == "Operator":
        from octet.sdk.operator import Operator

        return Operator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
