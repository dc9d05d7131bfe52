"""Where the time went: stages one after the other, which add up to the total as it is shown."""

from dataclasses import dataclass

from octet.sdk.receipt import Receipt, Timings
from octet.why.words import time

_COLUMNS = 32
_LABEL = 26
_UNITS = 10_000
"""A tenth of a millisecond is the smallest that is told."""
_LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Stage:
    """From one mark to the next, in tenths of milliseconds since arrival."""

    name: str
    start: int
    end: int


def stages(timings: Timings) -> tuple[Stage, ...]:
    """Marks that were never reached end nothing: their time belongs to the next. The last stage ends the request."""
    total = _units(timings.total)
    marks = [
        ("deciding", timings.decided),
        ("finding a replica", timings.dispatched),
        ("at the replicas' doors", timings.accepted),
        ("to the first piece", timings.first_chunk),
    ]
    found: list[Stage] = []
    start = 0
    for name, mark in marks:
        if mark is not None:
            end = min(max(start, _units(mark)), total)
            found.append(Stage(name, start, end))
            start = end
    found.append(Stage("to its end", start, max(start, total)))
    return tuple(found)


def waterfall(receipt: Receipt) -> tuple[str, ...]:
    """Lines of one width, and the total below them; what replica and verifier say of it stands beside."""
    rows = stages(receipt.timings)
    total = rows[-1].end
    lines = [f"{each.name:<{_LABEL}}{_ms(each.end - each.start):>12}  {_bar(each, total)}" for each in rows]
    return (*lines, f"{'total':<{_LABEL}}{_ms(total):>12}", *_beside(receipt))


def _beside(receipt: Receipt) -> list[str]:
    told = []
    if receipt.usage is not None:
        own = receipt.usage.timings
        steps = [("in line", own.queued), ("reading the prompt", own.prefill), ("writing", own.decode)]
        known = [f"{name} {time(seconds)}" for name, seconds in steps if seconds is not None]
        away = "" if own.preempted is None else f", {time(own.preempted)} of it preempted"
        told.append(f"by the replica's clock: {', '.join([*known, f'{time(own.total)} in all'])}{away}")
    if receipt.validation is not None:
        told.append(f"by the verifier's clock: {time(receipt.validation.seconds)}")
    return told


def _units(seconds: float) -> int:
    """None of it negative, endless or no number."""
    return round(min(seconds, _LONGEST_S) * _UNITS) if seconds > 0 else 0


def _ms(units: int) -> str:
    return f"{units / 10:.1f} ms"


def _bar(stage: Stage, total: int) -> str:
    """Where it lies in the whole; what took any time is seen."""
    if total == 0:
        return f"|{' ' * _COLUMNS}|"
    first = stage.start * _COLUMNS // total
    last = -(-stage.end * _COLUMNS // total) if stage.end > stage.start else first
    return f"|{' ' * first}{'#' * (last - first)}{' ' * (_COLUMNS - last)}|"
