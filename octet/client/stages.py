"""Where the time of a request went: a tree of stages whose parts follow one another and add up to their parent."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from octet.client.receipts import Receipt

UNITS_PER_SECOND = 10_000  # times are whole tenths of a millisecond, so that their sums are exact
OTHER = "other"  # time that no measurement attributes to a part
_STAGES = ("decision", "dispatch", "admission", "first token", "answer")
_MAX_SECONDS = 1e9
_Part = tuple[str, int, int, bool]  # name, start, end, and whether it failed; may reach beyond its parent


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a request's time. Start and end are in tenths of a millisecond since the request's arrival."""

    name: str
    start: int
    end: int
    has_failed: bool = False  # an attempt without an answer
    parts: tuple["Stage", ...] = ()  # empty, or from `start` to `end` without a gap

    @property
    def length(self) -> int:
        return self.end - self.start

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with times in seconds."""
        times = {"start": self.start / UNITS_PER_SECOND, "end": self.end / UNITS_PER_SECOND}
        parts = [each.to_dict() for each in self.parts]
        return {"name": self.name, **times, "has_failed": self.has_failed, "parts": parts}


def request_stages(receipt: Receipt) -> Stage:
    """Return the whole request, with the stages that it reached. The stage in which it ended lasts until its end."""
    timings, total = receipt.timings, _units(receipt.timings.total)
    marks = (timings.decided, timings.dispatched, timings.accepted, timings.first_chunk, timings.answered)
    reached = [number for number, mark in enumerate(marks) if mark is not None]
    stages, start = [], 0
    for number in reached:
        end = min(max(start, _units(marks[number] or 0.0)), total)
        stages.append(_stage(_STAGES[number], start, end, receipt))
        start = end
    if start < total:
        stages.append(_stage(_last_stage(receipt, reached[-1] + 1 if reached else 0), start, total, receipt))
    return Stage("total", 0, total, parts=tuple(stages))


def _last_stage(receipt: Receipt, following: int) -> str:
    """Return the name of the stage in which the request ended. `following` is the number of the first stage without a
    time."""
    if following == len(_STAGES):
        return OTHER if receipt.validation is None else "validation"
    return OTHER if following == 1 and not receipt.decision.primary else _STAGES[following]


def _stage(name: str, start: int, end: int, receipt: Receipt) -> Stage:
    return Stage(name, start, end, parts=_fill(start, end, _parts(name, start, end, receipt)))


def _parts(name: str, start: int, end: int, receipt: Receipt) -> list[_Part]:
    """Return what is measured within a stage: attempts by the router, all else by the replica."""
    if name == "admission" and (len(receipt.attempts) > 1 or any(each.reason for each in receipt.attempts)):
        return [
            (each.replica or each.specialist, _units(each.began), _units(each.began + each.seconds), bool(each.reason))
            for each in receipt.attempts
        ]
    if receipt.usage is None or name not in ("first token", "answer"):
        return []
    own = receipt.usage.timings
    steps = [("queue", own.queued), ("prefill", own.prefill)] if name == "first token" else [("decode", own.decode)]
    known = [(step, _units(seconds)) for step, seconds in steps if seconds is not None]
    # the replica's clock starts earlier than the router's by the time of a message, so the beginning is clipped
    at, found = min(start, end - sum(length for _, length in known)), []
    for step, length in known:
        found.append((step, at, at + length, False))
        at += length
    return found


def _fill(start: int, end: int, parts: Iterable[_Part]) -> tuple[Stage, ...]:
    """Clip the parts to the parent and to one another. Gaps become `other`."""
    found, at = [], start
    for name, begun, ended, has_failed in parts:
        first, last = (min(max(at, each), end) for each in (begun, ended))
        if last > first:
            if first > at:
                found.append(Stage(OTHER, at, first))
            found.append(Stage(name, first, last, has_failed))
            at = last
    if found and at < end:
        found.append(Stage(OTHER, at, end))
    return tuple(found)


def _units(seconds: float) -> int:
    """Convert to tenths of a millisecond: never negative, and bounded even for infinity and NaN."""
    return round(min(seconds, _MAX_SECONDS) * UNITS_PER_SECOND) if seconds > 0 else 0
