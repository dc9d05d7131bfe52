"""W3C trace context: the caller's trace goes on here and reaches the replica, or a new one begins."""

import re
from collections.abc import Callable
from typing import NamedTuple

from octet.telemetry.traceparent import HEADER, SAMPLED, STATE, Parent, parent_of
from router.reception.ask import Trace

__all__ = ["HEADER", "STATE", "Hop", "Tracer", "parsed", "passed_on"]

_TRACE_BYTES = 16
_SPAN_BYTES = 8
_CHANCE_DIGITS = 14
"""Of a trace's id, the last: W3C wants those to be random. What is sampled is read off them."""
_STATE_BYTES = 512
_STATE_MEMBERS = 32
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class Hop(NamedTuple):
    """One call to somebody else."""

    headers: tuple[tuple[str, str], ...]
    span_id: str
    """What the headers name; empty where nothing is recorded of it."""


class Tracer:
    """`draw(n)` gives n random bytes."""

    def __init__(self, draw: Callable[[int], bytes], sample: float | None = None) -> None:
        """`sample` is the share of the traces that begin here to be recorded, those of others being theirs to say;
        None: nothing is recorded here at all."""
        self._draw = draw
        self.sample = sample

    def receive(self, header: str | None, state: str = "") -> Trace:
        """What is no valid header begins a new trace, as the standard has it, and then the state counts for nothing."""
        parent = parent_of(header) if header is not None else None
        span_id = self._new(_SPAN_BYTES)
        if parent is None:
            return self._begun(span_id)
        recorded = self.sample is not None and parent.is_sampled
        return Trace(parent.trace_id, parent.span_id, parent.flags, passed_on(state), span_id, recorded)

    def headers(self, trace: Trace) -> tuple[tuple[str, str], ...]:
        """For whoever is asked next."""
        return self.hop(trace).headers

    def hop(self, trace: Trace) -> Hop:
        span_id = self._new(_SPAN_BYTES)
        state = ((STATE, trace.state),) if trace.state else ()
        header = Parent(trace.trace_id, span_id, trace.flags).header()
        return Hop(((HEADER, header), *state), span_id if trace.recorded else "")

    def child(self, trace: Trace) -> str:
        """The header for whoever is asked next, with a span of its own."""
        return self.headers(trace)[0][1]

    def _begun(self, span_id: str) -> Trace:
        trace_id = self._new(_TRACE_BYTES)
        chance = int(trace_id[-_CHANCE_DIGITS:], 16) / 16**_CHANCE_DIGITS
        recorded = self.sample is not None and chance < self.sample
        return Trace(trace_id, "", SAMPLED if recorded else 0, "", span_id, recorded)

    def _new(self, num_bytes: int) -> str:
        """Never all zeros: that means no id at all."""
        drawn = self._draw(num_bytes)
        return (drawn if any(drawn) else b"\1" * num_bytes).hex()


def parsed(header: str) -> Trace | None:
    parent = parent_of(header)
    return None if parent is None else Trace(parent.trace_id, parent.span_id, parent.flags)


def passed_on(state: str) -> str:
    """A list of `key=value`, others' and never changed: whole members from the left, as many as fit. Nothing of a list
    that is not valid."""
    if not state:
        return ""
    members = [member for each in state.split(",") if (member := each.strip(" \t"))]
    if len(members) > _STATE_MEMBERS or not all(_MEMBER.fullmatch(each) for each in members):
        return ""
    while len(joined := ",".join(members)) > _STATE_BYTES:
        members.pop()
    return joined
