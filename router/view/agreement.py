"""What shadows of the last hour have shown, counted as they are compared."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, fields

from google.protobuf.message import DecodeError

from octet.rpc.refusal import Refusal
from octet.v1 import operator_pb2 as wire
from router.operator.controls import Archive

_log = logging.getLogger(__name__)
WINDOW_MS = 3_600_000
_GRAIN_MS = 60_000
MOST_KEYS = 512
"""Of intent, primary, shadow and reason, at once: more are not counted."""
MOST_ROWS = 64
MOST_READ = 20_000
"""Comparisons at the start."""
_SLICE = 64
_JUDGED = frozenset({"passed", "failed"})
_Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Counts:
    compared: int = 0
    verified: int = 0
    primary_passed: int = 0
    shadow_passed: int = 0
    only_primary_passed: int = 0
    only_shadow_passed: int = 0
    agreed: int = 0
    similarity: float = 0.0

    def add(self, other: "_Counts", sign: int = 1) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + sign * getattr(other, field.name))


class Agreement:
    """Belongs to the event loop. Counts what this router compares; at its start, what the store has of the last hour,
    whoever compared it."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        """`wall_ms` is milliseconds since 1970."""
        self._wall_ms = wall_ms
        self._began = wall_ms()
        self._minutes: dict[int, dict[_Key, _Counts]] = {}
        """By when they began."""
        self._sums: dict[_Key, _Counts] = {}
        self._rows: list[wire.ShadowRow] | None = None
        """None: they are to be made anew."""

    def add(self, one: wire.Comparison) -> None:
        now = self._wall_ms()
        self._forget(now)
        key = (one.intent, one.primary, one.shadow, one.why)
        if one.at_unix_ms // _GRAIN_MS * _GRAIN_MS <= now - WINDOW_MS or (
            key not in self._sums and len(self._sums) >= MOST_KEYS
        ):
            return
        counts = _counts(one)
        minute = self._minutes.setdefault(min(one.at_unix_ms, now) // _GRAIN_MS * _GRAIN_MS, {})
        minute.setdefault(key, _Counts()).add(counts)
        self._sums.setdefault(key, _Counts()).add(counts)
        self._rows = None

    async def read(self, archive: Archive) -> None:
        """What was kept before this router began. The store may be away: then it is not known."""
        number = 0
        try:
            async with aclosing(archive.comparisons(self._began - WINDOW_MS)) as rows:
                async for one in _parsed(rows):
                    number += 1
                    if one.at_unix_ms < self._began:
                        self.add(one)
                    if number % _SLICE == 0:
                        await asyncio.sleep(0)
                    if number >= MOST_READ:
                        _log.warning("of the last hour's comparisons only the first %d are shown", number)
                        return
        except Refusal as refusal:
            _log.warning("what shadows have shown before is not known: %s", refusal)

    def rows(self) -> list[wire.ShadowRow]:
        """What was compared most comes first. Not to be changed."""
        self._forget(self._wall_ms())
        if self._rows is None:
            found = sorted(self._sums.items(), key=lambda item: (-item[1].compared, item[0]))
            self._rows = [_row(key, counts) for key, counts in found[:MOST_ROWS]]
        return self._rows

    def _forget(self, now: int) -> None:
        for start in [start for start in self._minutes if start <= now - WINDOW_MS]:
            for key, counts in self._minutes.pop(start).items():
                self._sums[key].add(counts, -1)
                if not self._sums[key].compared:
                    del self._sums[key]
            self._rows = None


async def _parsed(rows: AsyncIterator[bytes]) -> AsyncIterator[wire.Comparison]:
    """What nobody can read is nobody's."""
    async for raw in rows:
        try:
            yield wire.Comparison.FromString(raw)
        except DecodeError:
            continue


def _counts(one: wire.Comparison) -> _Counts:
    counts = _Counts(compared=1, agreed=int(one.agreed), similarity=one.similarity)
    if _JUDGED.issuperset((one.primary_outcome, one.shadow_outcome)):
        primary, shadow = one.primary_outcome == "passed", one.shadow_outcome == "passed"
        counts.verified = 1
        counts.primary_passed, counts.shadow_passed = int(primary), int(shadow)
        counts.only_primary_passed, counts.only_shadow_passed = int(primary and not shadow), int(shadow and not primary)
    return counts


def _row(key: _Key, counts: _Counts) -> wire.ShadowRow:
    intent, primary, shadow, why = key
    return wire.ShadowRow(
        intent=intent,
        primary=primary,
        shadow=shadow,
        why=why,
        compared=counts.compared,
        verified=counts.verified,
        primary_passed=counts.primary_passed,
        shadow_passed=counts.shadow_passed,
        only_primary_passed=counts.only_primary_passed,
        only_shadow_passed=counts.only_shadow_passed,
        agreed=counts.agreed,
        mean_similarity=counts.similarity / counts.compared,
    )
