"""Exchange of SLO measurements between routers through the store."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import isfinite

from google.protobuf.message import DecodeError

from octet.rpc.refusal import Refusal
from octet.telemetry.distributions import MOST_AHEAD_SECONDS, BadSketch, Sketch, TimeSlice
from octet.v1 import slo_pb2 as wire
from router.quality.slo import LONG_SERIES, SHORT_SERIES, SliceKey, SloSlice, SloTracker
from router.store.database import StorePosition
from router.store.rows import SliceRow, StoreUnavailable
from router.store.store import SliceUpdate, Store

_log = logging.getLogger(__name__)
SLICE_VERSION = 1
EXCHANGE_SECONDS = 2.0
_BATCH_ROWS = 50  # rows packed or unpacked in one turn of the event loop: a few milliseconds
_MOST_WARNED = 256  # maximum number of routers for which an unreadable slice is logged
_MOST_TALLIES = 64
_MOST_NAME = 64
_MOST_COUNT = 1 << 48


class BadSlice(ValueError):
    """The data is not a valid slice of this specialist, or has an unsupported version."""


def pack_slice(specialist: str, content: SloSlice) -> bytes:
    message = wire.SloSlice(
        version=SLICE_VERSION,
        specialist=specialist,
        answered=content.answered,
        preempted_once=content.preempted,
        tallies=[
            wire.SloTally(objective=name, target=target, samples=samples, breached=breached)
            for (name, target), (samples, breached) in list(content.counts.items())[-_MOST_TALLIES:]
        ],
        ttft=_pack_sketch(content.ttft),
        itl=_pack_sketch(content.itl),
        admission_to_first_token=_pack_sketch(content.admission),
    )
    return bytes(message.SerializeToString(deterministic=True))


def _pack_sketch(sketch: Sketch) -> bytes:
    return sketch.to_bytes() if sketch.count else b""


def unpack_slice(specialist: str, raw: bytes) -> SloSlice:
    """Parse and check a slice, because the store's content is not trusted. Raises BadSlice for invalid data."""
    try:
        message = wire.SloSlice.FromString(raw)
    except DecodeError:
        raise BadSlice("the data is not an octet.v1.SloSlice") from None
    if message.version != SLICE_VERSION:
        raise BadSlice(f"version must be {SLICE_VERSION}, got {message.version}")
    if message.specialist != specialist:
        raise BadSlice("the data belongs to another specialist")
    if not 0 <= message.preempted_once <= message.answered <= _MOST_COUNT:
        raise BadSlice(f"preempted_once must be in [0, answered], and answered at most {_MOST_COUNT}")
    if len(message.tallies) > _MOST_TALLIES:
        raise BadSlice(f"there must be at most {_MOST_TALLIES} tallies, got {len(message.tallies)}")
    try:
        raw_sketches = (message.ttft, message.itl, message.admission_to_first_token)
        ttft, itl, admission = (Sketch.from_bytes(each) if each else Sketch() for each in raw_sketches)
    except BadSketch as error:
        raise BadSlice(str(error)) from None
    content = SloSlice(ttft, itl, admission, message.answered, message.preempted_once)
    for each in message.tallies:
        if not 1 <= len(each.objective) <= _MOST_NAME:
            raise BadSlice(f"an objective's name must have 1 to {_MOST_NAME} characters")
        if not (isfinite(each.target) and each.target > 0):
            raise BadSlice(f"a target must be a positive number of seconds, got {each.target}")
        if not 0 <= each.breached <= each.samples <= _MOST_COUNT:
            raise BadSlice(f"breached must be in [0, samples], and samples at most {_MOST_COUNT}")
        content.count((each.objective, each.target), each.samples, each.breached)
    return content


class SloSharing:
    """Exchanges slices with the store, so that all routers that share it publish the same figures and a restarted
    router recovers its own. An unavailable store delays no request."""

    def __init__(self, tracker: SloTracker, store: Store, writer: str, wall: Callable[[], float]) -> None:
        """`writer` is unique to this process. `wall` returns Unix seconds."""
        self._tracker = tracker
        self._store = store
        self._writer = writer
        self._wall = wall
        self._position: StorePosition | None = None
        self._is_away = True  # whether the store did not answer last time; if so, it is asked before anything is packed
        self._warned: set[str] = set()

    async def run(self) -> None:
        while True:
            await self.exchange()
            await asyncio.sleep(EXCHANGE_SECONDS)

    async def exchange(self) -> bool:
        """Write changed slices, and read those of other routers. Return False if the store could not be used."""
        more = True
        while more:
            changed = [] if self._is_away else self._take_changed()
            was_away, self._is_away = self._is_away, True
            rows = [row for each in changed if (row := self._row(*each)) is not None]
            try:
                now_ms = round(self._wall() * 1000)
                update = await self._store.exchange_slices(self._writer, rows, self._position, now_ms)
            except StoreUnavailable as unavailable:
                self._put_back(changed)
                _log.debug("SLO measurements stay in this router: %s", unavailable)
                return False
            except asyncio.CancelledError:
                self._put_back(changed)
                raise
            except Refusal as refusal:
                _log.error("The store refused SLO measurements, which are lost: %s", refusal)
                return False
            self._is_away = False
            await self._receive(update)
            more = was_away or update.more or len(changed) == _BATCH_ROWS
        return True

    async def _receive(self, update: SliceUpdate) -> None:
        if update.whole and self._position is not None:  # another database: write everything again
            for meter in self._tracker.meters.values():
                meter.changed.update(meter.slices())
        whole = update.whole
        for start in range(0, max(1, len(update.rows)), _BATCH_ROWS):
            self._tracker.receive(self._unpack(update.rows[start : start + _BATCH_ROWS]), whole=whole)
            whole = False
            await asyncio.sleep(0)
        self._position = update.position

    def _unpack(self, rows: Sequence[SliceRow]) -> Iterator[tuple[str, str, SliceKey, SloSlice]]:
        for row in rows:
            if row.key not in self._tracker.meters or row.series not in (SHORT_SERIES, LONG_SERIES) or row.span_ms < 1:
                continue
            try:
                content = unpack_slice(row.key, row.raw)
            except BadSlice as error:
                if row.writer not in self._warned and len(self._warned) < _MOST_WARNED:
                    self._warned.add(row.writer)
                    _log.warning("Ignored the SLO measurements of router %s: %s", row.writer[:12], error)
            else:
                yield row.key, row.writer, (row.series, TimeSlice(row.start_ms, row.span_ms)), content

    def _take_changed(self) -> list[tuple[str, SliceKey]]:
        """Remove up to _BATCH_ROWS slices from the `changed` sets of the meters, and return them."""
        found: list[tuple[str, SliceKey]] = []
        for name, meter in self._tracker.meters.items():
            meter.settle()
            for each in list(islice(meter.changed, _BATCH_ROWS - len(found))):
                meter.changed.discard(each)
                found.append((name, each))
        return found

    def _put_back(self, changed: Sequence[tuple[str, SliceKey]]) -> None:
        for name, each in changed:
            meter = self._tracker.meters[name]
            if meter.slice_at(each) is not None:
                meter.changed.add(each)

    def _row(self, specialist: str, key: SliceKey) -> SliceRow | None:
        """Return the slice as a row; None if it has expired."""
        series, slice_of_time = key
        content, config = self._tracker.meters[specialist].slice_at(key), self._tracker.config
        if content is None:
            return None
        window = config.window if series == SHORT_SERIES else config.long_window
        expires = slice_of_time.end + round((window + MOST_AHEAD_SECONDS) * 1000)
        raw = pack_slice(specialist, content)
        return SliceRow(self._writer, series, specialist, slice_of_time.start, slice_of_time.span, expires, raw)
