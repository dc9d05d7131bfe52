"""Octet: many small specialist models, served as one product."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octet.sdk import (
        Answer,
        AsyncClient,
        Busy,
        CallerStalled,
        Cancelled,
        Choice,
        Chunk,
        Client,
        DeadlineExceeded,
        Forbidden,
        InvalidRequest,
        Job,
        JobEvent,
        Json,
        NoSpecialist,
        NotFound,
        OctetError,
        Operator,
        Receipt,
        Regex,
        ReplicaLost,
        ServerError,
        Unauthenticated,
        Unavailable,
    )

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AsyncClient",
    "Busy",
    "CallerStalled",
    "Cancelled",
    "Choice",
    "Chunk",
    "Client",
    "DeadlineExceeded",
    "Forbidden",
    "InvalidRequest",
    "Job",
    "JobEvent",
    "Json",
    "NoSpecialist",
    "NotFound",
    "OctetError",
    "Operator",
    "Receipt",
    "Regex",
    "ReplicaLost",
    "ServerError",
    "Unauthenticated",
    "Unavailable",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """The SDK is loaded when somebody asks for it: other processes share this package and never do."""
    if name in __all__:
        return getattr(import_module("octet.sdk"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
