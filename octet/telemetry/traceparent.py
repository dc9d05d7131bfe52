"""W3C's `traceparent`: which trace a call belongs to, and below which span."""

import re
from typing import NamedTuple

HEADER = "traceparent"
STATE = "tracestate"
RESPONSE = "traceresponse"
"""The same shape, on the way back: W3C keeps the other two for requests."""
SAMPLED = 0b01
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LENGTH = 55
_KNOWN_FLAGS = 0b11
"""Sampled and random: all others must be passed on as 0."""


class Parent(NamedTuple):
    trace_id: str
    """32 hex digits."""
    span_id: str
    """16 hex digits."""
    flags: int = 0

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parent_of(header: str) -> Parent | None:
    """None for what the standard calls invalid."""
    found = _SHAPE.match(header)
    if found is None:
        return None
    version, trace_id, span_id, flags = found.groups()
    if version == "ff" or not _ends_well(header, version) or not (trace_id.strip("0") and span_id.strip("0")):
        return None
    return Parent(trace_id, span_id, int(flags, 16) & _KNOWN_FLAGS)


def _ends_well(header: str, version: str) -> bool:
    """Later versions may say more, after another dash."""
    return len(header) == _LENGTH or (version != "00" and header[_LENGTH] == "-")
