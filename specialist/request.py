"""What a caller asks of a replica."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from octet.identity import Lane
from specialist.errors import InvalidRequest

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    lane: Lane
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int = 0
    """Higher is served first."""
    arrival: float = 0.0
    deadline: float | None = None
    """On the replica's clock. Past it the request ends, wherever it is."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the answer and are not part of it."""
    seed: int = 0
    draft_window: int = 0
    """Tokens to speculate ahead at most; 0 for plain decoding."""
    tenant_salt: bytes = b""
    """Requests with different salts never share a cached block."""

    def __post_init__(self) -> None:
        if not self.request_id:
            raise InvalidRequest("request_id", "must not be empty")
        if not self.prompt:
            raise InvalidRequest("prompt", "must hold at least 1 token")
        if self.max_tokens < 1:
            raise InvalidRequest("max_tokens", f"must be at least 1, got {self.max_tokens}")
        if self.draft_window < 0:
            raise InvalidRequest("draft_window", f"must be at least 0, got {self.draft_window}")
        if not isfinite(self.arrival):
            raise InvalidRequest("arrival", f"must be finite, got {self.arrival}")
        if self.deadline is not None and not isfinite(self.deadline):
            raise InvalidRequest("deadline", f"must be finite, got {self.deadline}")
