"""Since when things are wrong, and whether that is long enough to say so. What goes and comes again within moments has
been there all the while."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from octet.v1 import overview_pb2 as wire
from router.view.finding import Finding, Key, patience_with

_DAY_MS = 86_400_000
_KEPT = frozenset({"correctness"})
"""Found in what the store keeps: a router that has just begun need not watch for itself what has long been so."""


@dataclass(slots=True)
class _Standing:
    finding: Finding
    first: float
    first_ms: int
    last: float
    last_ms: int
    is_told: bool = False


class TroubleMemory:
    """Time is handed in: seconds that never step back, and milliseconds since 1970."""

    def __init__(self) -> None:
        self._standing: dict[Key, _Standing] = {}
        self._began: float | None = None
        """When it was first asked."""

    @property
    def told(self) -> frozenset[Key]:
        """For whoever judges them: what is known to be wrong must be well again, and not just a little better."""
        return frozenset(key for key, each in self._standing.items() if each.is_told)

    def step(self, found: Iterable[Finding], now: float, now_ms: int) -> list[wire.Trouble]:
        """What is told now, in no order."""
        self._began = now if self._began is None else self._began
        for finding in found:
            each = self._standing.get(finding.key)
            if each is None:
                each = self._standing[finding.key] = _Standing(finding, now, now_ms, now, now_ms)
            each.finding, each.last, each.last_ms = finding, now, now_ms
            each.is_told = each.is_told or self._is_long_enough(each, now - self._began)
        self._forget(lambda each: each.last < now and not self._lingers(each, now))
        return [_trouble(each, each.last < now, now_ms) for each in self._standing.values() if each.is_told]

    def _is_long_enough(self, each: _Standing, age: float) -> bool:
        """`age` is the memory's own."""
        before = patience_with(each.finding.kind).before
        return each.last - each.first >= before or (each.finding.kind in _KEPT and age < before)

    def _lingers(self, each: _Standing, now: float) -> bool:
        return each.is_told and now - each.last < patience_with(each.finding.kind).after

    def _forget(self, is_over: Callable[[_Standing], bool]) -> None:
        for key in [key for key, each in self._standing.items() if is_over(each)]:
            del self._standing[key]


def _trouble(each: _Standing, is_over: bool, now_ms: int) -> wire.Trouble:
    """What is over, but not for long enough to be sure, is told as what it was."""
    finding = each.finding
    since = min(finding.since_ms or each.first_ms, now_ms)
    begun = f"since {moment(since, now_ms)}"
    ended = f"over since {moment(each.last_ms, now_ms)}, watched a little longer; it was: "
    return wire.Trouble(
        severity=finding.severity,
        kind=finding.kind,
        subject=finding.subject,
        text=f"{finding.subject}: {ended if is_over else ''}{finding.what} {begun}",
        since_unix_ms=since,
        runbook=finding.runbook,
    )


def moment(at_ms: int, now_ms: int) -> str:
    """For people: the day only where it is not clear which."""
    shown = "%H:%M UTC" if now_ms - at_ms < _DAY_MS else "%Y-%m-%d %H:%M UTC"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(shown)
