"""W3C trace context: the caller's trace goes on here and reaches the replica, or a new one begins."""

import re
from collections.abc import Callable
from dataclasses import replace

from router.reception.ask import Trace

HEADER = "traceparent"
STATE = "tracestate"
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LENGTH = 55
_KNOWN_FLAGS = 0b11
"""Sampled and random: all others must be passed on as 0."""
_TRACE_BYTES = 16
_SPAN_BYTES = 8
_STATE_BYTES = 512
_STATE_MEMBERS = 32
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


class Tracer:
    """`draw(n)` gives n random bytes."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._draw = draw

    def receive(self, header: str | None, state: str = "") -> Trace:
        """What is no valid header begins a new trace, as the standard has it, and then the state counts for nothing."""
        trace = parsed(header) if header is not None else None
        if trace is None:
            return Trace(self._new(_TRACE_BYTES), "")
        return replace(trace, state=passed_on(state)) if state else trace

    def headers(self, trace: Trace) -> tuple[tuple[str, str], ...]:
        """For whoever is asked next."""
        state = ((STATE, trace.state),) if trace.state else ()
        return ((HEADER, self.child(trace)), *state)

    def child(self, trace: Trace) -> str:
        """The header for whoever is asked next, with a span of its own."""
        return f"00-{trace.trace_id}-{self._new(_SPAN_BYTES)}-{trace.flags:02x}"

    def _new(self, num_bytes: int) -> str:
        """Never all zeros: that means no id at all."""
        drawn = self._draw(num_bytes)
        return (drawn if any(drawn) else b"\1" * num_bytes).hex()


def parsed(header: str) -> Trace | None:
    found = _SHAPE.match(header)
    if found is None:
        return None
    version, trace_id, parent_id, flags = found.groups()
    if version == "ff" or not _ends_well(header, version) or not (trace_id.strip("0") and parent_id.strip("0")):
        return None
    return Trace(trace_id, parent_id, int(flags, 16) & _KNOWN_FLAGS)


def passed_on(state: str) -> str:
    """A list of `key=value`, others' and never changed: whole members from the left, as many as fit. Nothing of a list
    that is not valid."""
    members = [member for each in state.split(",") if (member := each.strip(" \t"))]
    if len(members) > _STATE_MEMBERS or not all(_MEMBER.fullmatch(each) for each in members):
        return ""
    while len(joined := ",".join(members)) > _STATE_BYTES:
        members.pop()
    return joined


def _ends_well(header: str, version: str) -> bool:
    """Later versions may say more, after another dash."""
    return len(header) == _LENGTH or (version != "00" and header[_LENGTH] == "-")
