"""How often shadows agreed with primaries in the last hour."""

import logging
from collections.abc import Callable
from contextlib import aclosing

from google.protobuf.message import DecodeError

from octet.rpc.refusal import Refusal
from octet.v1 import operator_pb2 as wire
from router.receipt_log import ReceiptLog

_log = logging.getLogger(__name__)
WINDOW_MS = 3_600_000
_GRAIN_MS = 60_000
MOST_KEYS = 512  # combinations of intent, primary, shadow and reason; further ones are not counted
MOST_ROWS = 64
MOST_READ = 20_000  # maximum number of comparisons read at the start
_CONCLUSIVE = frozenset({"passed", "failed"})
_Key = tuple[str, str, str, str]  # intent, primary, shadow and reason
_Counts = dict[str, float]  # counts by field of a ShadowRow, and the sum of the similarities


def _key(comparison: wire.Comparison) -> _Key:
    return comparison.intent, comparison.primary, comparison.shadow, comparison.why


class ShadowTally:
    """Counts comparisons by intent, primary, shadow and reason."""

    def __init__(self) -> None:
        self.counts: dict[_Key, _Counts] = {}

    def add(self, comparison: wire.Comparison) -> None:
        self._add(_key(comparison), _count_one(comparison))

    def subtract(self, other: "ShadowTally") -> None:
        for key, counts in other.counts.items():
            self._add(key, counts, -1)
            if not self.counts[key]["compared"]:
                del self.counts[key]

    def rows(self) -> list[wire.ShadowRow]:
        """Return the rows, those with the most comparisons first."""
        found = sorted(self.counts.items(), key=lambda item: (-item[1]["compared"], item[0]))
        return [_to_row(key, counts) for key, counts in found]

    def _add(self, key: _Key, counts: _Counts, sign: int = 1) -> None:
        total = self.counts.setdefault(key, {})
        for name, count in counts.items():
            total[name] = total.get(name, 0) + sign * count


class ShadowAgreement:
    """Counts this router's comparisons and those that the store holds for the hour before this router started."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._began = wall_ms()
        self._minutes: dict[int, ShadowTally] = {}
        self._sum = ShadowTally()
        self._rows: list[wire.ShadowRow] | None = None  # None if the rows must be computed again

    def add(self, comparison: wire.Comparison) -> None:
        now = self._wall_ms()
        self._forget(now)
        known = self._sum.counts
        is_old = comparison.at_unix_ms // _GRAIN_MS * _GRAIN_MS <= now - WINDOW_MS
        if is_old or (_key(comparison) not in known and len(known) >= MOST_KEYS):
            return
        start = min(comparison.at_unix_ms, now) // _GRAIN_MS * _GRAIN_MS
        self._minutes.setdefault(start, ShadowTally()).add(comparison)
        self._sum.add(comparison)
        self._rows = None

    async def read(self, receipts: ReceiptLog) -> None:
        """Read the comparisons made before this router started. An unavailable store is not an error."""
        number = 0
        try:
            async with aclosing(receipts.comparisons(self._began - WINDOW_MS)) as rows:
                async for raw in rows:
                    try:
                        comparison = wire.Comparison.FromString(raw)
                    except DecodeError:
                        continue
                    number += 1
                    if comparison.at_unix_ms < self._began:
                        self.add(comparison)
                    if number >= MOST_READ:
                        _log.warning("Only the first %d comparisons of the last hour are shown.", number)
                        return
        except Refusal as refusal:
            _log.warning("Earlier shadow comparisons are unknown: %s", refusal)

    def rows(self) -> list[wire.ShadowRow]:
        self._forget(self._wall_ms())
        if self._rows is None:
            self._rows = self._sum.rows()[:MOST_ROWS]
        return self._rows

    def _forget(self, now: int) -> None:
        for start in [start for start in self._minutes if start <= now - WINDOW_MS]:
            self._sum.subtract(self._minutes.pop(start))
            self._rows = None


def _count_one(comparison: wire.Comparison) -> _Counts:
    counts: _Counts = {"compared": 1, "agreed": comparison.agreed, "similarity": comparison.similarity}
    if _CONCLUSIVE.issuperset((comparison.primary_outcome, comparison.shadow_outcome)):
        primary, shadow = comparison.primary_outcome == "passed", comparison.shadow_outcome == "passed"
        counts |= {"verified": 1, "primary_passed": primary, "shadow_passed": shadow}
        counts |= {"only_primary_passed": primary and not shadow, "only_shadow_passed": shadow and not primary}
    return counts


def _to_row(key: _Key, counts: _Counts) -> wire.ShadowRow:
    row = wire.ShadowRow(mean_similarity=counts["similarity"] / counts["compared"])
    row.intent, row.primary, row.shadow, row.why = key
    for name, count in counts.items():
        if name != "similarity":
            setattr(row, name, round(count))
    return row
