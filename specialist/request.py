"""What a caller asks of a replica."""

import reprlib
from dataclasses import dataclass
from typing import Literal

from octet.due import earliest
from octet.identity import Lane
from specialist.errors import InvalidRequest
from specialist.sampling import GREEDY, Sampling
from specialist.steering import Steering

_SECRET = ("tenant_salt", "session_key")

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error", "shed"]
"""Shed: it had to give way to something more important, or waited in vain."""


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
    first_deadline: float | None = None
    """Past it the request ends unless its first token is there."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the answer and are not part of it."""
    sampling: Sampling = GREEDY
    seed: int = 0
    draft_window: int = 0
    """Tokens to speculate ahead at most; 0 for plain decoding."""
    tenant_salt: bytes = b""
    """Requests with different salts never share a cached block."""
    session_key: bytes = b""
    """The same for all requests of a conversation; empty without one."""
    guide: Steering | None = None
    """Which tokens may come next, for an answer that must keep a form."""

    def __post_init__(self) -> None:
        self._require(isinstance(self.request_id, str) and self.request_id != "", "request_id", "a non-empty string")
        self._require(isinstance(self.lane, Lane), "lane", "a Lane")
        self._require(isinstance(self.prompt, tuple) and len(self.prompt) > 0, "prompt", "a tuple of at least 1 token")
        for name, least in (("max_tokens", 1), ("draft_window", 0), ("priority", None), ("seed", None)):
            self._require_integer(name, least)
        for name in ("arrival", "deadline", "first_deadline"):
            value = getattr(self, name)
            finite = isinstance(value, float | int) and abs(value) < 2**63
            self._require(finite or (name != "arrival" and value is None), name, "a finite time")
        tokens = isinstance(self.stop_ids, frozenset) and all(isinstance(token, int) for token in self.stop_ids)
        self._require(tokens, "stop_ids", "a frozenset of tokens")
        self._require(isinstance(self.tenant_salt, bytes), "tenant_salt", "bytes")
        self._require(isinstance(self.session_key, bytes), "session_key", "bytes")
        self._require(isinstance(self.sampling, Sampling), "sampling", "a Sampling")

    @property
    def nearest_deadline(self) -> float | None:
        return earliest(self.first_deadline, self.deadline)

    def _require_integer(self, name: str, least: int | None) -> None:
        value = getattr(self, name)
        integer = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        bound = "an integer of 64 bits" if least is None else f"an integer of at least {least}"
        self._require(integer and (least is None or value >= least), name, bound)

    def _require(self, holds: bool, field: str, what: str) -> None:
        if not holds:
            value = getattr(self, field)
            shown = type(value).__name__ if field in _SECRET else reprlib.repr(value)
            raise InvalidRequest(field, f"must be {what}, got {shown}")
