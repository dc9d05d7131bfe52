"""W3C trace context: the caller's trace goes on here and reaches the replica, or a new one begins."""

import re
from collections.abc import Callable

from router.reception.ask import Trace

HEADER = "traceparent"
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LENGTH = 55
_KNOWN_FLAGS = 0b11
"""Sampled and random: all others must be passed on as 0."""
_TRACE_BYTES = 16
_SPAN_BYTES = 8


class Tracer:
    """`draw(n)` gives n random bytes."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._draw = draw

    def receive(self, header: str | None) -> Trace:
        """What is no valid header begins a new trace, as the standard has it."""
        return (parsed(header) if header is not None else None) or Trace(self._new(_TRACE_BYTES), "")

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


def _ends_well(header: str, version: str) -> bool:
    """Later versions may say more, after another dash."""
    return len(header) == _LENGTH or (version != "00" and header[_LENGTH] == "-")
