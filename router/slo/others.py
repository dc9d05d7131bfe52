"""What other routers have measured, and this one before it was restarted: summed up by specialist and slice."""

import logging
from collections.abc import Iterable

from octet.config.ensemble import SloConfig
from octet.store import SliceRow
from octet.telemetry.window import Place, Window
from router.slo.measured import LONG, LONG_PARTS, SHORT, Changed
from router.slo.pack import BadSlice, unpack
from router.slo.slice import Slice, Tally

_log = logging.getLogger(__name__)
MOST_WRITERS = 64
"""Of one slice; routers that are restarted over and over are not summed up beyond it."""
_MOST_TOLD = 256
"""Routers whose slices could not be read, and of whom that was said."""


class OthersOf:
    """One specialist."""

    def __init__(self, slo: SloConfig) -> None:
        self.short: Window[Slice] = Window(slo.window, Slice)
        self.long: Window[Tally] = Window(slo.long_window, Tally, LONG_PARTS)
        self._kept: dict[Changed, dict[str, Slice]] = {}
        """By slice, then by router."""

    def take(self, writer: str, where: Changed, content: Slice) -> None:
        by_writer = self._kept.setdefault(where, {})
        if writer in by_writer or len(by_writer) < MOST_WRITERS:
            by_writer[writer] = content

    def sum_up(self, changed: Iterable[Changed], now: float) -> None:
        """After something was taken of these."""
        for series, place in changed:
            total = Slice()
            for each in self._kept.get((series, place), {}).values():
                total.merge(each)
            if series == SHORT:
                self.short.put(place, total)
            else:
                self.long.put(place, total.tally)
        self.expire(now)

    def expire(self, now: float) -> None:
        """What no window holds any more takes no room."""
        self.short.expire(now)
        self.long.expire(now)
        held = {(SHORT, place) for place in self.short.slices} | {(LONG, place) for place in self.long.slices}
        self._kept = {where: each for where, each in self._kept.items() if where in held}

    def routers(self, now: float) -> int:
        """Whose requests are in the short window."""
        counted = [
            by_writer
            for (series, place), by_writer in self._kept.items()
            if series == SHORT and self.short.counts(place, now)
        ]
        return len(set().union(*counted))


class Others:
    """By specialist; only those that are known here."""

    def __init__(self, slo: SloConfig, specialists: Iterable[str]) -> None:
        self._by_name = {name: OthersOf(slo) for name in specialists}
        self._unread: set[str] = set()

    def of(self, specialist: str) -> OthersOf:
        return self._by_name[specialist]

    def resize(self, slo: SloConfig) -> None:
        for each in self._by_name.values():
            each.short.resize(slo.window)
            each.long.resize(slo.long_window)

    def take(self, rows: Iterable[SliceRow], now: float) -> None:
        changed: dict[str, set[Changed]] = {}
        for row in rows:
            of = self._by_name.get(row.key)
            if of is None or row.series not in (SHORT, LONG) or row.span_ms < 1:
                continue
            try:
                content = unpack(row.key, row.raw)
            except BadSlice as error:
                self._tell(row.writer, error)
                continue
            where = (row.series, Place(row.start_ms, row.span_ms))
            of.take(row.writer, where, content)
            changed.setdefault(row.key, set()).add(where)
        for name, of in self._by_name.items():
            of.sum_up(changed.get(name, ()), now)

    def forget(self, slo: SloConfig) -> None:
        """Another database lies in the place of the one that they were read from."""
        self._by_name = {name: OthersOf(slo) for name in self._by_name}

    def _tell(self, writer: str, error: BadSlice) -> None:
        if writer not in self._unread and len(self._unread) < _MOST_TOLD:
            self._unread.add(writer)
            _log.warning("what the router %s has measured is left out: %s", writer[:12], error)
