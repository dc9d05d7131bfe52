"""Which trace a request belongs to, for the door it came through: callers are told."""

from contextvars import ContextVar

from octet.telemetry.traceparent import RESPONSE, SAMPLED, Parent
from router.reception.ask import Trace


class Traced:
    """Of one call, which may be several requests: the first one's."""

    __slots__ = ("trace",)

    def __init__(self) -> None:
        self.trace: Trace | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """None before it was read. Sampled is what is recorded here."""
        trace = self.trace
        if trace is None:
            return []
        flags = trace.flags | SAMPLED if trace.recorded else trace.flags & ~SAMPLED
        header = Parent(trace.trace_id, trace.span_id, flags).header()
        return [(RESPONSE.encode(), header.encode())]


_TRACED: ContextVar[Traced | None] = ContextVar("traced", default=None)


def received(trace: Trace) -> None:
    """A request was read, on behalf of whichever call is being answered now."""
    call = _TRACED.get()
    if call is not None and call.trace is None:
        call.trace = trace


def new_call() -> Traced:
    """What follows in this task, and in those it begins, is done for it."""
    call = Traced()
    _TRACED.set(call)
    return call
