"""The control plane: operators' changes, periodic controllers, changes by other routers, and events about all these."""

import asyncio
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from admission.escalation import EscalationLadder
from admission.lanes import BY_POLICY, AdapterRef
from octet.background import cancel_tasks, run_every, run_in_background
from octet.clock import Clock, SystemClock
from octet.config.ensemble import Ensemble
from octet.limits import shorten
from octet.rpc.refusal import invalid_field
from octet.v1 import operator_pb2 as wire
from router.control.adapters import AdapterSync
from router.control.audit import AuditWriter, ChangeAuthor, audit_row, audit_to_wire, check_author
from router.control.breakers import CorrectnessBreakers, merge_breaker_documents
from router.control.collapse import RECENT, SIGNAL
from router.control.floors import FloorRegistry
from router.control.knobs import EscalationController, KnobController
from router.control.lanes import LaneRegistry
from router.control.replicas import FleetReplicas, ObservedReplica
from router.control.state import BREAKER, CORRECTNESS, RESTARTS, SharedState
from router.control.status import ControlStatus, DrainedReplicas, ReplicaRestarts, merge_restart_documents
from router.control.ticket_keys import TicketKeys
from router.control.weights import SupervisedWeights
from router.refusals import store_unavailable
from router.routing.dispatch_plan import FleetStatus
from router.store.rows import AuditRow, StoreChanges, StoreUnavailable
from router.store.store import Store
from router.store.sync import SHORT_SECONDS

_log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
REFRESH_SECONDS = 0.25  # between two checks of the replicas
_TIDY_TICKS = 300
_TOKEN_BYTES = 2
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")  # accepted by replicas, with space for the suffix of a load name
_MODEL = re.compile(r"/|hf:")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME_LIMIT = "1 to 40 characters from a-z, 0-9, '.', '_' and '-', starting with a letter or a digit"
_MAX_PATH_CHARACTERS = 1024
MAX_QUEUED_EVENTS = 256


class ControlPlane:
    """The control plane. Used on the event loop. Operator calls return the state after the change, or raise Refusal."""

    def __init__(
        self,
        ensemble: Ensemble,
        store: Store,
        replicas: FleetReplicas,
        *,
        wall: Callable[[], float] = time.time,
        clock: Clock | None = None,
        weights: Path | None = None,
        token: Callable[[], str] = lambda: secrets.token_hex(_TOKEN_BYTES),
    ) -> None:
        """`wall` returns Unix seconds. The control plane starts and closes `store`, and sets its callbacks. `weights`
        is the folder in which the replicas' supervisor takes orders; None without a supervisor."""
        self._store = store
        self._wall = wall
        self._state = state = SharedState(ensemble, store, replicas, wall)
        # these are called on the request path: they never block and never raise
        self.record_outcome = state.record_outcome
        self.record_demand = state.record_demand
        self.events = OperatorEvents()
        self._audit = audit = AuditWriter(
            store,
            state.documents,
            {BREAKER: merge_breaker_documents, RESTARTS: merge_restart_documents},
            self._publish_audit,
        )
        self._adapters = AdapterSync(state, clock or SystemClock(), self._report_wrong_adapter)
        self._breakers = CorrectnessBreakers(state, audit, FloorRegistry(state, audit))
        self._escalation = EscalationController(state, audit)
        self._knobs = KnobController(state, audit, self._escalation)
        self.knobs = self._knobs.infos
        self._weights = SupervisedWeights(state, store, weights, clock or SystemClock())
        self._lanes = LaneRegistry(
            state, audit, self._adapters, self._weights, token, self._publish_audit, self._breakers.floors
        )
        self._drained = DrainedReplicas(state, audit)
        self._restarts = ReplicaRestarts(state, audit)
        self._ticket_keys = TicketKeys(state, audit, wall)
        self.ticket_keys, self.want_ticket_key = self._ticket_keys.current, self._ticket_keys.want
        self._status = ControlStatus(
            state, self._breakers, self._knobs, self._lanes, self._drained, self._restarts, self._weights
        )
        self.replicas = self._status.replicas
        self._tasks: list[asyncio.Task[None]] = []
        self._tick_lock = asyncio.Lock()
        self._num_ticks = 0
        self._must_refill = False
        self._hurried: asyncio.Task[None] | None = None
        self.fleet_status = FleetStatus.initial(ensemble)  # for requests that arrive from now on; replaced as a whole
        store.on_change = self._store_changed
        store.health.on_change = self._publish_trouble

    @property
    def store_trouble(self) -> str:
        return self._store.trouble

    async def start(self, *, with_tasks: bool = True) -> None:
        """Start the store and, if `with_tasks`, the periodic tasks. Otherwise the caller must call `tick` itself."""
        await self._store.start()
        if self._store.trouble:
            what = "breakers, knobs and lanes start as configured, without earlier operator changes"
            _log.error("the store does not answer (%s): %s", self._store.trouble, what)
        self._publish_status()
        if with_tasks:
            self._tasks = [
                run_every(TICK_SECONDS, lambda: self.tick(self._wall()), "the control plane's tick"),
                run_every(REFRESH_SECONDS, self._keep_adapters_loaded, "keeping adapters loaded"),
            ]

    async def close(self) -> None:
        """Stop all tasks and close the store, which writes its buffered rows first."""
        await cancel_tasks(*self._tasks, *(() if self._hurried is None else (self._hurried,)))
        await self._adapters.close()
        await self._store.close()
        self.events.close()

    def record_signals(
        self, lane_id: str, specialist: str, tenant: str, question: str, signals: Mapping[str, bool], what: str
    ) -> None:
        """Count a judged answer for each signal, by whether it is bad; `what` describes a degenerate answer. Act at
        once if the lane has collapsed. Called off the request path; never blocks."""
        self._state.record_signals(lane_id, specialist, tenant, question, signals, what)
        is_idle = bool(self._tasks) and (self._hurried is None or self._hurried.done())
        if is_idle and any(signals.values()) and self._has_to_act(specialist, lane_id):
            self._hurried = run_in_background(self.tick(self._wall()), "acting on a collapse")

    def _has_to_act(self, specialist: str, lane_id: str) -> bool:
        """Return whether the lane has collapsed but still serves, or is still the candidate."""
        status = self.fleet_status.specialists.get(specialist)
        lanes = self._state.lanes(specialist)
        if status is None or lanes is None:
            return False
        if status.candidate is not None and status.candidate.lane_id == lane_id and lanes.candidate is not None:
            return self._state.find_collapse(lanes, lanes.candidate, self._wall()) is not None
        is_closed = self._breakers.record(specialist).state == "closed"
        return is_closed and self._breakers.signs(specialist, self._wall()).collapse is not None

    def reload(self, ensemble: Ensemble) -> None:
        """Apply a new configuration with the same specialists. Operator changes stay active."""
        before, self._state.ensemble = self._state.ensemble, ensemble
        self._store.reconfigure(ensemble.store)
        self._must_refill = self._must_refill or ensemble.correctness.window != before.correctness.window
        if ensemble.escalation.sustain != before.escalation.sustain:
            self._state.demand.reset(ensemble.escalation.sustain)
        self._publish_status()

    async def tick(self, now: float) -> None:
        async with self._tick_lock:
            self._state.refresh()
            ticks = (
                self._lanes.tick,
                self._breakers.tick,
                self._escalation.tick,
                self._restarts.tick,
                self._ticket_keys.tick,
            )
            for step in (self._refill, self._audit.save_pending, *ticks):
                try:
                    await step(now)
                except Exception:
                    _log.critical("a controller failed; the others continue", exc_info=True)
            self._num_ticks += 1
            if self._num_ticks % _TIDY_TICKS == 0:
                self._state.correctness.tidy(now)
                self._state.collapse.tidy(now)
            self._publish_status(now)

    def breakers(self) -> list[wire.BreakerInfo]:
        now, status, names = self._wall(), self._status, self._state.ensemble.names
        infos = (*(status.breaker(name, now) for name in names), *(status.candidate(name, now) for name in names))
        return [info for info in infos if info is not None]

    def escalation(self) -> Mapping[tuple[str, str], EscalationLadder]:
        """Return the escalation by intent and specialist, of those that were ever escalated."""
        return self._escalation.ladders()

    def restarts(self, replica: str) -> Mapping[str, int]:
        """Return how often the replica has restarted, by kind of reason."""
        return self._restarts.record(replica).counts

    def lanes(self, specialist: str = "") -> list[wire.LaneInfo]:
        names = [self._state.specialist(specialist).name] if specialist else list(self._state.ensemble.names)
        now = self._wall()
        return [info for name in names for info in self._status.lanes(name, now)]

    async def audit(self, most: int = 100, subject: str = "") -> list[wire.AuditEntry]:
        try:
            return [audit_to_wire(row) for row in await self._store.audit(most, subject)]
        except StoreUnavailable as unavailable:
            raise store_unavailable(f"the audit log cannot be read now: {unavailable}") from None

    async def hold_breaker(self, specialist: str, hold: str, *, who: str, why: str) -> wire.BreakerInfo:
        name = self._state.specialist(specialist).name
        await self._breakers.hold(name, hold, check_author(who, why), self._wall())
        return self._breaker_after(name)

    async def release_breaker(self, specialist: str, *, who: str, why: str) -> wire.BreakerInfo:
        name = self._state.specialist(specialist).name
        await self._breakers.release(name, check_author(who, why), self._wall())
        return self._breaker_after(name)

    async def relearn_floor(self, specialist: str, *, who: str, why: str) -> wire.BreakerInfo:
        """Forget the specialist's learned floors, and learn new ones from the answers judged from now on."""
        name = self._state.specialist(specialist).name
        await self._breakers.floors.relearn(name, check_author(who, why), self._wall())
        return self._breaker_after(name)

    async def set_knob(self, name: str, value: float, *, who: str, why: str) -> wire.KnobInfo:
        info = await self._knobs.set(name, value, check_author(who, why), self._wall())
        self._publish_status()
        return info

    async def release_knob(self, name: str, *, who: str, why: str) -> wire.KnobInfo:
        info = await self._knobs.release(name, check_author(who, why), self._wall())
        self._publish_status()
        return info

    async def load_adapter(self, specialist: str, path: str, name: str = "", *, who: str, why: str) -> wire.LaneInfo:
        """Load an adapter as the candidate lane, which gets only shadow traffic."""
        config, author = self._state.specialist(specialist), check_author(who, why)
        if not 0 < len(path) <= _MAX_PATH_CHARACTERS or not path.isprintable():
            raise invalid_field("path", f"1 to {_MAX_PATH_CHARACTERS} printable characters", shorten(path))
        name = name or path.rstrip("/").rpartition("/")[2]
        if not _NAME.fullmatch(name):
            raise invalid_field("name", _NAME_LIMIT, shorten(name))
        await self._lanes.load(config.name, path, name, author, self._wall())
        return self._lane_after(config.name, "candidate")

    async def refresh(self, specialist: str, model: str, digest: str = "", *, who: str, why: str) -> wire.LaneInfo:
        """Start other weights of a supervised specialist beside the running ones; they become the candidate lane."""
        config, author = self._state.specialist(specialist), check_author(who, why)
        if not 0 < len(model) <= _MAX_PATH_CHARACTERS or not model.isprintable() or not _MODEL.match(model):
            limit = f"an absolute path or hf:ORG/NAME, of 1 to {_MAX_PATH_CHARACTERS} printable characters"
            raise invalid_field("model", limit, shorten(model))
        if digest and not _DIGEST.fullmatch(digest):
            raise invalid_field("digest", "64 lowercase hex digits", shorten(digest))
        has_started = await self._lanes.refresh(config.name, model, digest, author, self._wall())
        return self._lane_after(config.name, "candidate" if has_started else "starting")

    async def promote(self, specialist: str, name: str = "", *, who: str, why: str) -> wire.LaneInfo:
        config = self._state.specialist(specialist)
        await self._lanes.promote(config.name, name, check_author(who, why), self._wall())
        return self._lane_after(config.name, "serving")

    async def roll_back(self, specialist: str, *, who: str, why: str) -> wire.LaneInfo:
        config = self._state.specialist(specialist)
        await self._lanes.roll_back(config.name, check_author(who, why), self._wall())
        return self._lane_after(config.name, "serving")

    async def drain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo:
        await self._drained.drain(replica, check_author(who, why), self._wall())
        return self._replica_after(replica)

    async def undrain_replica(self, replica: str, *, who: str, why: str) -> wire.ReplicaInfo:
        await self._drained.undrain(replica, check_author(who, why), self._wall())
        return self._replica_after(replica)

    def _breaker_after(self, specialist: str) -> wire.BreakerInfo:
        self._publish_status()
        return self._status.breaker(specialist, self._wall())

    def _lane_after(self, specialist: str, status: str) -> wire.LaneInfo:
        self._publish_status()
        infos = self._status.lanes(specialist, self._wall())
        return next((info for info in infos if info.status == status), wire.LaneInfo(specialist=specialist))

    def _replica_after(self, replica: str) -> wire.ReplicaInfo:
        self._publish_status()
        return next((info for info in self.replicas() if info.name == replica), wire.ReplicaInfo(name=replica))

    def _publish_status(self, now: float | None = None) -> None:
        self._state.refresh()
        self.fleet_status = self._status.fleet(self._wall() if now is None else now)

    def _store_changed(self, changes: StoreChanges) -> None:
        state = self._state
        if changes.whole:
            state.documents.take_all(changes.documents)
            state.correctness.reset(state.correctness.span, ())
            state.collapse.reset(state.correctness.span, (), self._wall())
        for document in changes.documents:
            state.documents.take(document)
        state.correctness.put(each for each in changes.buckets if each.series == CORRECTNESS)
        state.collapse.put(changes.buckets, self._wall())
        state.demand.put(changes.buckets, self._wall())
        state.demand.usual.put(changes.buckets, self._wall())
        self._weights.put(changes.buckets, self._wall())
        for row in changes.audit:
            self._publish_audit(row)
        if changes.documents or changes.whole:
            self._publish_status()

    def _publish_trouble(self, trouble: str) -> None:
        self.events.publish(wire.OperatorEvent(at_unix_ms=round(self._wall() * 1000), store_trouble=trouble))

    def _publish_audit(self, row: AuditRow) -> None:
        self.events.publish(wire.OperatorEvent(at_unix_ms=row.at_ms, audit=audit_to_wire(row)))

    async def _report_wrong_adapter(self, replica: ObservedReplica, ref: AdapterRef, digest: str) -> None:
        why = f"{replica.name} found unexpected content at {ref.path} and does not use it"
        before, after = f"{ref.load_name} {ref.digest}", f"{ref.load_name} {digest}"
        row = audit_row(self._wall(), ChangeAuthor(BY_POLICY, why), "wrong_adapter", replica.specialist, before, after)
        _log.error("%s: %s", replica.specialist, why)
        if not await self._audit.note(row):
            self._publish_audit(row)

    async def _refill(self, now: float) -> None:
        """Rebuild the correctness windows from the store after their length has changed."""
        if not self._must_refill:
            return
        state, span = self._state, self._state.ensemble.correctness.window
        try:
            buckets = await self._store.buckets(CORRECTNESS, int(now - span))
            signals = [*await self._store.buckets(SIGNAL, int(now - span))]
            signals += await self._store.buckets(RECENT, int(now - SHORT_SECONDS))
        except StoreUnavailable as error:
            _log.error("correctness windows stay %g s long until the store answers: %s", state.correctness.span, error)
            return
        state.correctness.reset(span, buckets)
        state.collapse.reset(span, signals, now)
        self._must_refill = False

    async def _keep_adapters_loaded(self) -> None:
        await self._lanes.begin_new(self._wall())
        self._weights.sync(self._wall())
        self._publish_status()  # in the same turn: it says which lane a new replica may answer for
        self._adapters.sync()


class OperatorEvents:
    """Broadcasts events to subscribers with bounded queues. Used on the event loop."""

    def __init__(self, max_queued: int = MAX_QUEUED_EVENTS) -> None:
        self._max_queued = max_queued
        self._queues: set[EventQueue] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._queues)

    @contextmanager
    def subscribe(self) -> Iterator[AsyncIterator[wire.OperatorEvent]]:
        """Yield an iterator over the events that are published from now on."""
        queue = EventQueue(self._max_queued)
        if self._is_closed:
            queue.end()
        else:
            self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)

    def publish(self, event: wire.OperatorEvent) -> None:
        for queue in self._queues:
            queue.put(event)

    def close(self) -> None:
        self._is_closed = True
        for queue in self._queues:
            queue.end()
        self._queues.clear()


class EventQueue:
    """The events for one subscriber. A slow subscriber loses its oldest events, and receives the number lost."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: asyncio.Queue[wire.OperatorEvent | None] = asyncio.Queue()  # None ends it
        self._num_dropped = self._dropped_at = 0

    def __aiter__(self) -> "EventQueue":
        return self

    async def __anext__(self) -> wire.OperatorEvent:
        if self._num_dropped:
            dropped, self._num_dropped = self._num_dropped, 0
            return wire.OperatorEvent(at_unix_ms=self._dropped_at, dropped=dropped)
        event = await self._queue.get()
        if event is None:
            raise StopAsyncIteration
        return event

    def put(self, event: wire.OperatorEvent) -> None:
        if self._queue.qsize() >= self._most:
            self._queue.get_nowait()
            self._num_dropped += 1
            self._dropped_at = event.at_unix_ms
        self._queue.put_nowait(event)

    def end(self) -> None:
        self._queue.put_nowait(None)
