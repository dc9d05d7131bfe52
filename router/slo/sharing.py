"""Routers that share a store read what the others have measured, and so publish the same figures; a router that is
restarted finds its own there. A store that is away keeps nobody waiting."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from octet.rpc.refusal import Refusal
from octet.store import SliceMark, SliceNews, SliceRow, StoreUnavailable
from router.slo.measured import Changed
from router.slo.pack import pack
from router.slo.slos import Slos

_log = logging.getLogger(__name__)
PACE_SECONDS = 2.0
_BITE = 50
"""Rows that are written or read between two looks at what else waits: a few milliseconds."""


class Slices(Protocol):
    async def exchange(
        self, writer: str, written: Sequence[SliceRow], mark: SliceMark | None, now_ms: int
    ) -> SliceNews:
        """Raises StoreUnavailable, Refusal."""


class Sharing:
    def __init__(self, slos: Slos, slices: Slices, writer: str, wall: Callable[[], float]) -> None:
        """`writer` is this process's, and no other's ever. `wall` tells Unix seconds."""
        self._slos = slos
        self._slices = slices
        self._writer = writer
        self._wall = wall
        self._mark: SliceMark | None = None
        self._is_away = True
        """The store did not answer last time: it is asked before anything is made ready for it."""

    async def run(self) -> None:
        while True:
            await self.exchange()
            await asyncio.sleep(PACE_SECONDS)

    async def exchange(self) -> bool:
        """Once. Whether the store answered."""
        more = True
        while more:
            changed = [] if self._is_away else self._changed()
            was_away, self._is_away = self._is_away, True
            rows = [self._row(*each) for each in changed]
            try:
                news = await self._slices.exchange(
                    self._writer, [row for row in rows if row is not None], self._mark, round(self._wall() * 1000)
                )
            except StoreUnavailable as unavailable:
                self._put_back(changed)
                _log.debug("what was measured stays here: %s", unavailable)
                return False
            except asyncio.CancelledError:
                self._put_back(changed)
                raise
            except Refusal as refusal:
                _log.error("the store does not take what was measured, which is left out: %s", refusal)
                return False
            self._is_away = False
            await self._hear(news)
            more = was_away or news.more or len(changed) == _BITE
        return True

    async def _hear(self, news: SliceNews) -> None:
        if news.whole and self._mark is not None:
            self._write_all_again()
        whole = news.whole
        for start in range(0, max(1, len(news.rows)), _BITE):
            self._slos.heard(news.rows[start : start + _BITE], whole=whole)
            whole = False
            await asyncio.sleep(0)
        self._mark = news.mark

    def _changed(self) -> list[tuple[str, Changed]]:
        """A bite of what is not in the store as it is here."""
        found: list[tuple[str, Changed]] = []
        for name, measured in self._slos.measured.items():
            measured.settle()
            for each in list(islice(measured.changed, _BITE - len(found))):
                measured.changed.discard(each)
                found.append((name, each))
        return found

    def _put_back(self, changed: Sequence[tuple[str, Changed]]) -> None:
        for name, each in changed:
            measured = self._slos.measured[name]
            if measured.slice_at(each) is not None:
                measured.changed.add(each)

    def _write_all_again(self) -> None:
        """Another database lies in the place of the one that has it."""
        for measured in self._slos.measured.values():
            measured.changed.update(measured.slices())

    def _row(self, specialist: str, changed: Changed) -> SliceRow | None:
        """None where it was forgotten meanwhile."""
        series, place = changed
        content = self._slos.measured[specialist].slice_at(changed)
        if content is None:
            return None
        until = self._slos.until_ms(series, place)
        return SliceRow(self._writer, series, specialist, place.start, place.span, until, pack(specialist, content))
