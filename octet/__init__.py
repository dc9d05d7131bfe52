"""Octet: many small specialist models, served as one product."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octet.client.answer import Answer, Chunk
    from octet.client.clients import AsyncClient, Client
    from octet.client.conversation import AsyncConversation, Conversation
    from octet.client.errors import (
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
    from octet.client.jobs import Job, JobEvent
    from octet.client.operator import Operator
    from octet.client.options import Choice, Json, Regex
    from octet.client.receipts import Receipt
    from octet.client.records import ToolCall

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncConversation",
    "Busy",
    "CallerStalled",
    "Cancelled",
    "Choice",
    "Chunk",
    "Client",
    "Conversation",
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
    "ToolCall",
    "Unauthenticated",
    "Unavailable",
    "__version__",
]
_PARTS = ("errors", "options", "receipts", "answer", "jobs", "conversation", "clients", "operator")


def __getattr__(name: str) -> Any:
    """Load the SDK on first use: server processes import this package too, and need no SDK."""
    if name in __all__:
        modules = (import_module(f"octet.client.{module}") for module in _PARTS)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
