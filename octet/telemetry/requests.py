"""Telemetry of a request: its context for log lines, its trace and spans."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

_log = logging.getLogger(__name__)


class RequestContext(NamedTuple):
    request_id: str = ""
    trace_id: str = ""


NO_REQUEST = RequestContext()
_CONTEXT: ContextVar[RequestContext] = ContextVar("handled", default=NO_REQUEST)


current_request = _CONTEXT.get


def set_request(request_id: str, trace_id: str = "") -> None:
    _CONTEXT.set(RequestContext(request_id, trace_id))


@contextmanager
def request_context(request_id: str, trace_id: str = "") -> Iterator[None]:
    token = _CONTEXT.set(RequestContext(request_id, trace_id))
    try:
        yield
    finally:
        _CONTEXT.reset(token)


TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
TRACERESPONSE = "traceresponse"  # header of responses in the form of `traceparent`, which W3C reserves for requests
SAMPLED_FLAG = 0b01
_TRACEPARENT_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACEPARENT_LENGTH = 55
_KNOWN_FLAGS = 0b11  # sampled and random. All others must be passed on as 0.
_SPAN_BYTES = 8

SpanKind = Literal["internal", "server", "client"]
AttributeValue = str | bool | int | float | tuple[str, ...]


class TraceParent(NamedTuple):
    trace_id: str
    span_id: str
    flags: int = 0

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED_FLAG)

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(header: str) -> TraceParent | None:
    """Parse the header; return None if it is invalid according to the standard."""
    found = _TRACEPARENT_SHAPE.match(header)
    if found is None:
        return None
    version, trace_id, span_id, flags = found.groups()
    # later versions may append more after another dash
    has_valid_end = len(header) == _TRACEPARENT_LENGTH or (version != "00" and header[_TRACEPARENT_LENGTH] == "-")
    if version == "ff" or not has_valid_end or not (trace_id.strip("0") and span_id.strip("0")):
        return None
    return TraceParent(trace_id, span_id, int(flags, 16) & _KNOWN_FLAGS)


@dataclass(frozen=True, slots=True)
class Span:
    """One finished stage of one request. Ids are hex; times are nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty if the trace begins here
    start: int
    end: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    kind: SpanKind = "internal"
    error: str | None = None  # a short reason; None if the stage succeeded
    state: str = ""
    is_remote: bool = False  # the parent belongs to another process


def new_span_id(draw: Callable[[int], bytes]) -> str:
    """Return a random id. It is never all zeros, because that means no id. `draw(n)` returns n random bytes."""
    drawn = draw(_SPAN_BYTES)
    return (drawn if any(drawn) else b"\1" * _SPAN_BYTES).hex()


class ClockAnchor:
    """Converts monotonic to wall-clock times. Spans that are converted with the same anchor keep their durations, even
    if the wall clock is adjusted meanwhile."""

    __slots__ = ("_offset",)

    def __init__(self, now: float, wall_ns: int) -> None:
        """`now` and `wall_ns` are the same moment on the two clocks."""
        self._offset = wall_ns - round(now * 1e9)

    def ns(self, moment: float) -> int:
        return self._offset + round(moment * 1e9)
