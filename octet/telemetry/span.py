"""One stage of one request, as it is told to whoever collects traces: written down when it is over."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["internal", "server", "client"]
Value = str | bool | int | float | tuple[str, ...]
_SPAN_BYTES = 8


@dataclass(frozen=True, slots=True)
class Span:
    """Ids are W3C's, hex; times are nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty where the trace begins here."""
    start: int
    end: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    kind: Kind = "internal"
    error: str | None = None
    """What went wrong, in a word or two; None where nothing did."""
    state: str = ""
    """W3C `tracestate`."""
    is_remote: bool = False
    """The parent is another process's."""


class SpanIds:
    """`draw(n)` gives n random bytes."""

    def __init__(self, draw: Callable[[int], bytes]) -> None:
        self._draw = draw

    def new(self) -> str:
        """Never all zeros: that means no id at all."""
        drawn = self._draw(_SPAN_BYTES)
        return (drawn if any(drawn) else b"\1" * _SPAN_BYTES).hex()


class Anchor:
    """What a moment on a clock that only runs forward was by the calendar. Taken once for a request in each process,
    when it ends: its stages keep their lengths, whatever the calendar does, and one that was put right in between moves
    them all together."""

    __slots__ = ("_offset",)

    def __init__(self, now: float, wall_ns: int) -> None:
        """The same moment on both."""
        self._offset = wall_ns - round(now * 1e9)

    def ns(self, moment: float) -> int:
        return self._offset + round(moment * 1e9)
