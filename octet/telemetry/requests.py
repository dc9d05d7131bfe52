"""Telemetry of a request: log context, trace, outcome; and background tasks, whose failures are logged."""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire

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
TRACERESPONSE = "traceresponse"  # on responses, in the form of `traceparent`, which W3C reserves for requests
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
    """Return None for a header that is invalid according to the standard."""
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


class SpanIds:
    """Draws random span ids; `draw(n)` returns n random bytes."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._draw = draw

    def new(self) -> str:
        """Returns an id that is never all zeros, which would mean no id."""
        drawn = self._draw(_SPAN_BYTES)
        return (drawn if any(drawn) else b"\1" * _SPAN_BYTES).hex()


class ClockAnchor:
    """Converts monotonic times to wall-clock times; one for each request, so that its stages keep their lengths."""

    __slots__ = ("_offset",)

    def __init__(self, now: float, wall_ns: int) -> None:
        """Both arguments are the same time, on two clocks."""
        self._offset = wall_ns - round(now * 1e9)

    def ns(self, moment: float) -> int:
        return self._offset + round(moment * 1e9)


RequestOutcome = Literal["answered", "refused", "failed", "cancelled"]
OUTCOMES: tuple[RequestOutcome, ...] = get_args(RequestOutcome)


def _reasons(names: str) -> frozenset[int]:
    return frozenset(error_pb2.ErrorReason.Value(f"ERROR_REASON_{name}") for name in names.split())


# The queue is full, or a deadline would be missed.
CAPACITY_REASONS = _reasons("QUEUE_FULL DEADLINE_UNREACHABLE WOULD_DELAY_OTHERS SHED")
_CALLER_REASONS = _reasons("CANCELLED CALLER_STALLED")
# A passed deadline is among them: a request that cannot be answered in time should be refused at once.
_FAILURE_REASONS = _reasons(
    "UNSPECIFIED DEADLINE ENGINE_FAILED REPLICA_FAILED REPLICA_LOST NO_REPLICA INTERNAL STORE_UNAVAILABLE"
)


def request_outcome(receipt: wire.Receipt) -> RequestOutcome:
    """Return the outcome of a request that has ended. answered: in full. cancelled: the caller cancelled, left, or
    stopped reading. failed: a replica, the router or the deadline failed, or an answer broke off. refused: before any
    output, for lack of capacity, by a rule, or because no specialist could answer."""
    if not receipt.HasField("error"):
        return "answered"
    return error_outcome(receipt.error, begun=receipt.timings.HasField("first_chunk"))


def error_outcome(error: wire.Error, *, begun: bool = False) -> RequestOutcome:
    """Set `begun` if part of the answer was sent."""
    if error.reason in _CALLER_REASONS:
        return "cancelled"
    return "failed" if begun or error.reason in _FAILURE_REASONS else "refused"


def responsible_specialist(receipt: wire.Receipt) -> str:
    """Return the specialist that answered, else the one tried first or planned first; empty if there is none."""
    return receipt.specialist or first_asked(receipt)


def first_asked(receipt: wire.Receipt) -> str:
    """Return the specialist that was tried or planned first: the fallback if the primary was replaced."""
    lead = str(receipt.between.lead or receipt.decision.primary)
    if receipt.between.spilled or not receipt.attempts:  # only the last attempts are stored
        return lead
    return str(receipt.attempts[0].specialist)


_REASON_NAMES: dict[int, str] = {
    number: name.removeprefix("ERROR_REASON_").lower() for name, number in error_pb2.ErrorReason.items()
}
REASON_NAMES = frozenset((*_REASON_NAMES.values(), "other"))


def reason_name(reason: int) -> str:
    """Returns the reason in lower case; `other` if it is unknown."""
    return _REASON_NAMES.get(reason, "other")


_RESTART_SECONDS = 0.5


def run_in_background(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


def run_forever(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> "asyncio.Task[None]":
    """Restart the work whenever it ends, until the task is cancelled."""

    async def run() -> None:
        while True:
            try:
                await work()
                _log.critical("%s has ended and is restarted", name)
            except Exception:
                _log.critical("%s has failed and is restarted", name, exc_info=True)
            await asyncio.sleep(_RESTART_SECONDS)

    return asyncio.create_task(run(), name=name)


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("%s has failed", task.get_name(), exc_info=task.exception())
