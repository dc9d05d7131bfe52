"""The Python SDK. Needs grpcio and protobuf, nothing else."""

from octet.sdk.answer import Answer, Chunk, TokenLogprobs
from octet.sdk.async_client import AsyncClient, AsyncStream
from octet.sdk.client import Client, Stream
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
from octet.sdk.operator import Operator
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
from octet.sdk.tool_call import ToolCall

__all__ = [
    "Admission",
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Attempt",
    "Busy",
    "CallerStalled",
    "Cancelled",
    "Choice",
    "Chunk",
    "Client",
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
    "TokenLogprobs",
    "ToolCall",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "Validation",
]
