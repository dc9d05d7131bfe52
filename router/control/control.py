"""Everything that may change while everything serves, on one event loop: what operators order, what the machines make
of what was counted, and what other routers that share the store have done."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable

from admission.knobs import UNSPECIFIED
from admission.lane import AdapterRef
from admission.lanes import POLICY
from octet.clock import Clock, SystemClock
from octet.config.ensemble import Ensemble
from octet.rpc.refusal import invalid, shorten
from octet.store import AuditRow, Changes, Store, StoreUnavailable
from octet.v1 import operator_pb2 as wire
from router.background import for_good
from router.between.standing import Standing
from router.control import sheet
from router.control.breakers import Breakers
from router.control.change import signed
from router.control.cordons import Cordons
from router.control.events import Events
from router.control.keeper import Keeper
from router.control.knobs import KnobBoard
from router.control.known import BREAKER, Known
from router.control.ladders import Ladders
from router.control.lane_books import LaneBooks
from router.control.pen import Pen
from router.control.publish import standing_of
from router.control.refusals import not_read
from router.control.rows import entry_of, row
from router.control.seen import Replicas, Seen
from router.control.told import Told
from router.control.windows import CORRECTNESS, DEMAND

_log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
LOOK_SECONDS = 0.25
"""Between two looks at the replicas."""
_TIDY_TICKS = 300
_TOKEN_BYTES = 2
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
"""What replicas take, with room for what makes it differ from others."""
_NAME_LIMIT = "1 to 40 of a-z, 0-9, '.', '_' and '-' that start with a letter or a digit"
_MOST_PATH = 1024


class Control:
    def __init__(
        self,
        ensemble: Ensemble,
        store: Store,
        replicas: Replicas,
        *,
        wall: Callable[[], float] = time.time,
        clock: Clock | None = None,
        token: Callable[[], str] = lambda: secrets.token_hex(_TOKEN_BYTES),
    ) -> None:
        """`wall` tells unix seconds. The store is started before, and closed after: its callbacks are taken here."""
        self._store = store
        self._wall = wall
        self._known = Known(ensemble, store, replicas)
        self.events = Events()
        self._pen = Pen(store, self._known.shelf, {BREAKER: sheet.merge}, self._tell)
        self._keeper = Keeper(self._known, clock or SystemClock(), self._wrong_adapter)
        self._breakers = Breakers(self._known, self._pen)
        self._ladders = Ladders(self._known, self._pen)
        self._knobs = KnobBoard(self._known, self._pen, self._ladders)
        self._lanes = LaneBooks(self._known, self._pen, self._keeper, token, self._tell)
        self._cordons = Cordons(self._known, self._pen)
        self._told = Told(self._known, self._breakers, self._lanes, self._cordons)
        self._tasks: list[asyncio.Task[None]] = []
        self._ticking = asyncio.Lock()
        self._num_ticks = 0
        self._refilling = False
        self.standing = Standing.initial(ensemble)
        """For requests that come from now on; replaced whole."""
        store.on_change = self._changed
        store.on_trouble = self._troubled

    @property
    def store_trouble(self) -> str:
        """Empty while the store answers."""
        return self._store.trouble

    async def start(self, *, by_itself: bool = True) -> None:
        """The store may be away: then what is configured counts until it is back. Unless it goes on by itself, whoever
        holds it calls `tick`."""
        await self._store.start()
        if self._store.trouble:
            _log.error(
                "breakers, knobs and lanes begin as configured, whatever was ordered before: the store is away (%s)",
                self._store.trouble,
            )
        self._publish()
        if by_itself:
            self._tasks.append(for_good(self._keep_ticking, "the machines' tick"))
            self._tasks.append(for_good(self._keep_looking, "keeping adapters"))

    async def close(self) -> None:
        """The store too: what was counted is written first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._keeper.close()
        await self._store.close()
        self.events.close()

    def reload(self, ensemble: Ensemble) -> None:
        """Other figures for the same specialists; what was ordered stays."""
        before, self._known.ensemble = self._known.ensemble, ensemble
        self._store.reconfigure(ensemble.store)
        self._refilling = self._refilling or ensemble.correctness.window != before.correctness.window
        if ensemble.escalation.sustain != before.escalation.sustain:
            self._known.demand.begin_anew(ensemble.escalation.sustain)
        self._publish()

    async def tick(self, now: float) -> None:
        """One look at everything that moves by itself."""
        async with self._ticking:
            self._known.look()
            for part in (self._refill, self._catch_up, self._lanes.tick, self._breakers.tick, self._ladders.tick):
                try:
                    await part(now)
                except Exception:
                    _log.critical("a part of the machines' tick failed; the others go on", exc_info=True)
            self._num_ticks += 1
            if self._num_ticks % _TIDY_TICKS == 0:
                self._known.judged.tidy(now)
            self._publish(now)

    def judged(self, lane_id: str, outcome: str) -> None:
        """Never blocks, never raises. Only `passed` and `failed` count, and only for a lane."""
        if lane_id and outcome in ("passed", "failed"):
            self._known.judged.add(lane_id, self._wall(), passed=outcome == "passed")

    def served(self, specialist: str, intent: str) -> None:
        """A request found room. Never blocks, never raises."""
        self._known.demand.add(specialist, intent or UNSPECIFIED, self._wall(), served=True)

    def refused(self, specialist: str, intent: str) -> None:
        """A request was refused for want of room, and for nothing else. Never blocks, never raises."""
        self._known.demand.add(specialist, intent or UNSPECIFIED, self._wall(), served=False)

    def breakers(self) -> list[wire.BreakerInfo]:
        """Of the lanes that serve, then of the candidates."""
        now, names = self._wall(), self._known.ensemble.names
        candidates = (self._told.candidate(name, now) for name in names)
        return [*(self._told.breaker(name, now) for name in names), *(each for each in candidates if each is not None)]

    def knobs(self) -> list[wire.KnobInfo]:
        return self._knobs.infos()

    def escalation(self) -> dict[str, int]:
        """The level of each specialist's ladder; 0: nothing is escalated."""
        return {name: self._ladders.ladder(name).level for name in self._known.ensemble.names}

    def lanes(self, specialist: str = "") -> list[wire.LaneInfo]:
        """Newest first; of all where none is named. Raises Refusal."""
        names = [self._known.specialist(specialist).name] if specialist else list(self._known.ensemble.names)
        now = self._wall()
        return [info for name in names for info in self._told.lanes(name, now)]

    def replicas(self) -> list[wire.ReplicaInfo]:
        cordoned = self._cordons.names()
        return [self._told.replica(seen, cordoned) for seen in self._known.replicas.seen()]

    async def audit(self, most: int = 100, subject: str = "") -> list[wire.AuditEntry]:
        """Newest first. Raises Refusal."""
        try:
            return [entry_of(each) for each in await self._store.audit(most, subject)]
        except StoreUnavailable as unavailable:
            raise not_read(str(unavailable)) from None

    async def hold_breaker(self, specialist: str, hold: str, *, who: str, why: str) -> wire.BreakerInfo:
        """Raises Refusal, as all that follow."""
        name, now = self._known.specialist(specialist).name, self._wall()
        await self._breakers.hold(name, hold, signed(who, why), now)
        self._publish()
        return self._told.breaker(name, now)

    async def release_breaker(self, specialist: str, *, who: str, why: str) -> wire.BreakerInfo:
        name, now = self._known.specialist(specialist).name, self._wall()
        await self._breakers.release(name, signed(who, why), now)
        self._publish()
        return self._told.breaker(name, now)

    async def set_knob(self, name: str, value: float, *, who: str, why: str) -> wire.KnobInfo:
        info = await self._knobs.set(name, value, signed(who, why), self._wall())
        self._publish()
        return info

    async def release_knob(self, name: str, *, who: str, why: str) -> wire.KnobInfo:
        info = await self._knobs.release(name, signed(who, why), self._wall())
        self._publish()
        return info

    async def load_adapter(self, specialist: str, path: str, name: str = "", *, who: str, why: str) -> wire.LaneInfo:
        """A candidate: it shadows, and answers nobody."""
        config, by = self._known.specialist(specialist), signed(who, why)
        if not 0 < len(path) <= _MOST_PATH or not path.isprintable():
            raise invalid("path", f"1 to {_MOST_PATH} printable characters", shorten(path))
        called = name or path.rstrip("/").rpartition("/")[2]
        if not _NAME.fullmatch(called):
            raise invalid("name", _NAME_LIMIT, shorten(called))
        await self._lanes.load(config.name, path, called, by, self._wall())
        return self._lane_after(config.name, "candidate")

    async def promote(self, specialist: str, name: str = "", *, who: str, why: str) -> wire.LaneInfo:
        config = self._known.specialist(specialist)
        await self._lanes.promote(config.name, name, signed(who, why), self._wall())
        return self._lane_after(config.name, "serving")

    async def roll_back(self, specialist: str, *, who: str, why: str) -> wire.LaneInfo:
        config = self._known.specialist(specialist)
        await self._lanes.roll_back(config.name, signed(who, why), self._wall())
        return self._lane_after(config.name, "serving")

    async def drain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo:
        await self._cordons.drain(replica, signed(who, why), self._wall())
        return self._replica_after(replica)

    async def undrain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo:
        await self._cordons.undrain(replica, signed(who, why), self._wall())
        return self._replica_after(replica)

    def _lane_after(self, specialist: str, status: str) -> wire.LaneInfo:
        self._publish()
        infos = self._told.lanes(specialist, self._wall())
        return next((info for info in infos if info.status == status), wire.LaneInfo(specialist=specialist))

    def _replica_after(self, replica: str) -> wire.ReplicaInfo:
        self._publish()
        return next((info for info in self.replicas() if info.name == replica), wire.ReplicaInfo(name=replica))

    def _publish(self, now: float | None = None) -> None:
        at = self._wall() if now is None else now
        self._known.look()
        self.standing = standing_of(self._known, self._breakers, self._knobs, self._cordons, at)

    def _changed(self, changes: Changes) -> None:
        """The store tells what was committed, here or elsewhere."""
        if changes.whole:
            self._known.shelf.take_all(changes.documents)
            self._known.judged.begin_anew(self._known.judged.span, ())
        for document in changes.documents:
            self._known.shelf.take(document)
        self._known.judged.put(each for each in changes.buckets if each.series == CORRECTNESS)
        self._known.demand.put((each for each in changes.buckets if each.series == DEMAND), self._wall())
        for each in changes.audit:
            self._tell(each)
        if changes.documents or changes.whole:
            self._publish()

    def _troubled(self, trouble: str) -> None:
        self.events.tell(wire.OperatorEvent(at_unix_ms=round(self._wall() * 1000), store_trouble=trouble))

    def _tell(self, each: AuditRow) -> None:
        self.events.tell(wire.OperatorEvent(at_unix_ms=each.at_ms, audit=entry_of(each)))

    async def _wrong_adapter(self, seen: Seen, ref: AdapterRef, digest: str) -> None:
        why = f"{seen.name} found another content under {ref.path}: it is not used"
        before, after = f"{ref.load_name} {ref.digest}", f"{ref.load_name} {digest}"
        told = row(self._wall(), POLICY, why, "wrong_adapter", seen.specialist, before, after)
        _log.error("%s: %s", seen.specialist, why)
        if not await self._pen.note(told):
            self._tell(told)

    async def _catch_up(self, _: float) -> None:
        await self._pen.catch_up()

    async def _refill(self, now: float) -> None:
        """A window of another length is counted from the store, where the store answers."""
        if not self._refilling:
            return
        span = self._known.ensemble.correctness.window
        try:
            buckets = await self._store.buckets(CORRECTNESS, int(now - span))
        except StoreUnavailable as unavailable:
            _log.error("windows stay %g s long until the store answers: %s", self._known.judged.span, unavailable)
            return
        self._known.judged.begin_anew(span, buckets)
        self._refilling = False

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tick(self._wall())

    async def _keep_looking(self) -> None:
        """At the replicas: what they may be sent is published, what they miss is brought."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._lanes.meet(self._wall())
            self._publish()
            self._keeper.look()
