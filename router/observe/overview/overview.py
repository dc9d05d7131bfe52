"""The overview, refreshed at limited cost and shared by all watchers."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from octet import __version__
from octet.background import cancel_tasks, run_forever, run_in_background
from octet.clock import Clock
from octet.config.ensemble import Ensemble
from octet.rpc.handlers import ConcurrencyLimit
from octet.rpc.messages import copy_message, message_to_json
from octet.rpc.refusal import Refusal
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2
from router.assembly import BackgroundServices
from router.control.control import ControlPlane
from router.dispatch.replicas.fleet import Fleet
from router.observe.overview import findings
from router.observe.overview.findings import FindingTracker, OverviewFacts, get_delays, is_serving
from router.observe.overview.headline import headline
from router.observe.overview.traffic import CacheReuseTracker, Traffic, rates_to_wire
from router.receipt_log import ReceiptLog

_log = logging.getLogger(__name__)
TICK_SECONDS = 0.5  # between two overviews
KEEPALIVE_SECONDS = 5.0  # a frame is sent at least this often, even if nothing has changed
MOST_WATCHERS = 32
# a new router waits this long for its replicas before it reports that no specialist serves
_START_SECONDS = get_delays("no_replica").before
_CPU_SHARE = 0.02  # share of a core; if many replicas make overviews costly, fewer are created
STEP_SECONDS = 5.0
MOST_POINTS = 720
_DIGITS = 6  # decimals of seconds and shares; few, because there are many points
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
MOST_ENTRIES = 20
_RETRY_SECONDS = 5.0
_SHOWN_LANES = frozenset({"serving", "candidate", "previous"})


class AuditTail:
    """Holds the newest audit entries, which `follow` keeps up to date."""

    def __init__(self, source: ControlPlane, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._source = source
        self._retry_seconds = retry_seconds
        self._entries: dict[int, wire.AuditEntry] = {}

    def entries(self) -> list[wire.AuditEntry]:
        return list(self._entries.values())

    async def follow(self) -> None:
        with self._source.events.subscribe() as events:
            await self._read()
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "audit":
                    self._add([event.audit])
                elif kind == "dropped" or (kind == "store_trouble" and not event.store_trouble):
                    await self._read()

    async def _read(self) -> None:
        while True:
            try:
                self._add(await self._source.audit(MOST_ENTRIES, ""))
            except Refusal as refusal:
                _log.debug("Reading the audit log failed and will be retried: %s", refusal)
                await asyncio.sleep(self._retry_seconds)
            else:
                return

    def _add(self, entries: Sequence[wire.AuditEntry]) -> None:
        """Add entries, except those without a number, which are not in the store."""
        found = {**self._entries, **{each.number: each for each in entries if each.number}}
        newest = sorted(found, reverse=True)[:MOST_ENTRIES]
        self._entries = {number: found[number] for number in newest}


def compact_json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


class _StoredPoint(NamedTuple):
    point: wire.Point
    json: bytes


class HistoryRecorder:
    """Records a point per specialist every few seconds. Points of the last hour are kept, in this process only."""

    def __init__(self, step: float = STEP_SECONDS, most: int = MOST_POINTS) -> None:
        self._step = step
        self._most = most
        self._points: dict[str, deque[_StoredPoint]] = {}

    def add(self, overview: wire.Overview) -> None:
        before = self._points
        self._points = {each.name: before.get(each.name) or deque(maxlen=self._most) for each in overview.specialists}
        for each in overview.specialists:
            point = _point(each, overview.at_unix_ms)
            self._points[each.name].append(_StoredPoint(point, compact_json(message_to_json(point))))

    def message(self, since_ms: int = 0) -> wire.History:
        history = wire.History(step_seconds=self._step)
        for name, points in self._points.items():
            history.specialists.add(name=name).points.extend(each.point for each in _since(points, since_ms))
        return history

    def json(self, since_ms: int = 0) -> bytes:
        specialists = []
        for name, points in self._points.items():
            written = b",".join(each.json for each in _since(points, since_ms))
            specialists.append(b'{"name":%b,"points":[%b]}' % (compact_json(name), written))
        return b'{"step_seconds":%b,"specialists":[%b]}' % (compact_json(self._step), b",".join(specialists))


def _since(points: Iterable[_StoredPoint], since_ms: int) -> Iterator[_StoredPoint]:
    return (each for each in points if each.point.at_unix_ms >= since_ms)


def _point(view: wire.SpecialistView, at_ms: int) -> wire.Point:
    loads = [replica.load for replica in view.replicas if replica.HasField("load")]
    blocks = sum(load.blocks.total for load in loads)
    shortest = (objective.burns[0] for objective in view.slo.objectives if objective.burns)
    return wire.Point(
        at_unix_ms=at_ms,
        requests=round(view.rates.requests, _DIGITS),
        refused=round(view.rates.refused, _DIGITS),
        completion_tokens=round(view.rates.completion_tokens, _DIGITS),
        waiting=sum(load.waiting for load in loads),
        running=sum(load.running for load in loads),
        ttft_p95=_rounded(view.slo.ttft, "p95"),
        itl_p95=_rounded(view.slo.itl, "p95"),
        admission_to_first_token_p95=_rounded(view.slo.admission_to_first_token, "p95"),
        pass_rate=_rounded(view.breaker, "pass_rate"),
        blocks_used=round(sum(load.blocks.used for load in loads) / blocks, _DIGITS) if blocks else None,
        cache_reuse=_rounded(view, "cache_reuse"),
        burn=max((round(burn.rate, _DIGITS) for burn in shortest if burn.HasField("rate")), default=None),
    )


def _rounded(message: Any, field: str) -> float | None:
    return round(getattr(message, field), _DIGITS) if message.HasField(field) else None


class OverviewFrame:
    """One overview, serialized once per format for all watchers."""

    def __init__(self, number: int, overview: wire.Overview, made: float, cpu: Callable[[], float]) -> None:
        self.number = number
        self.overview = overview
        self.made = made
        self.cost = 0.0  # CPU seconds spent on serializing so far
        self._cpu = cpu
        self._writing: asyncio.Task[bytes] | None = None

    @cached_property
    def raw(self) -> bytes:
        began = self._cpu()
        raw: bytes = self.overview.SerializeToString()
        self.cost += self._cpu() - began
        return raw

    async def json(self) -> bytes:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_json(), name="write an overview")
        return await asyncio.shield(self._writing)

    def has_same_content(self, overview: wire.Overview) -> bool:
        at, overview.at_unix_ms = overview.at_unix_ms, self.overview.at_unix_ms
        same = overview == self.overview
        overview.at_unix_ms = at
        return bool(same)

    async def _write_json(self) -> bytes:
        """Write one specialist at a time, so that requests are served in between."""
        written = []
        for view in self.overview.specialists:
            began = self._cpu()
            written.append(compact_json(message_to_json(view)))
            self.cost += self._cpu() - began
            await asyncio.sleep(0)
        began = self._cpu()
        rest = copy_message(self.overview)
        del rest.specialists[:]
        fields = {name: compact_json(value) for name, value in message_to_json(rest).items()}
        fields["specialists"] = b"[" + b",".join(written) + b"]"
        whole = b"{" + b",".join(compact_json(name) + b":" + value for name, value in fields.items()) + b"}"
        self.cost += self._cpu() - began
        return whole


class Overviews:
    """Creates overviews: every STEP_SECONDS for history and findings, and more often while there are watchers.
    `wall_ms` returns milliseconds since 1970, `cpu` the seconds of CPU time of this thread."""

    def __init__(
        self,
        services: BackgroundServices,
        fleet: Fleet,
        ensemble: Ensemble,
        clock: Clock,
        wall_ms: Callable[[], int],
        cpu: Callable[[], float] = time.thread_time,
        most_watchers: int = MOST_WATCHERS,
    ) -> None:
        self._services = services
        self._fleet = fleet
        self._audit = AuditTail(services.control)
        self.traffic = Traffic(clock)
        self._cache = CacheReuseTracker(clock)
        self.history = HistoryRecorder()
        self.watchers = ConcurrencyLimit(most_watchers, "watching the overview")
        self._ensemble = ensemble
        self._clock = clock
        self._wall_ms = wall_ms
        self._cpu = cpu
        self._tracker = FindingTracker()
        self._frame: OverviewFrame | None = None
        self._changed = asyncio.Event()
        self._refreshed_at = float("-inf")  # when an overview was last created, changed or not
        self._stepped_at = float("-inf")
        self._last_cost = 0.0
        self._began = clock.now()
        self._has_served = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, receipts: ReceiptLog) -> None:
        self._tasks = [
            run_forever(self._run, "the overview"),
            run_forever(self._audit.follow, "following the audit"),
            run_in_background(self._services.agreement.read(receipts), "reading comparisons"),
        ]

    async def close(self) -> None:
        await cancel_tasks(*self._tasks)

    def reload(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble

    def now(self) -> OverviewFrame:
        if self._frame is None or self._clock.now() - self._refreshed_at >= TICK_SECONDS:
            return self._refresh()
        return self._frame

    async def follow(self) -> AsyncGenerator[OverviewFrame, None]:
        """Yield the current frame, then newer ones; a slow reader misses some. Raises Refusal for too many watchers."""
        with self.watchers.enter():
            frame = self.now()
            while True:
                yield frame
                number = frame.number
                while self._frame is None or self._frame.number <= number:
                    await self._changed.wait()
                frame = self._frame

    def since_ms(self, last_seconds: float) -> int:
        return self._wall_ms() - round(last_seconds * 1000) if last_seconds else 0

    def tick(self) -> None:
        now = self._clock.now()
        if now - self._stepped_at >= STEP_SECONDS:
            self._stepped_at = now
            self._sample_replicas()
            self.history.add(self._refresh().overview)
        elif self.watchers.num_open.total() and now - self._refreshed_at >= TICK_SECONDS:
            self._refresh()

    @property
    def pause(self) -> float:
        cost = self._last_cost + (0.0 if self._frame is None else self._frame.cost)
        return min(max(TICK_SECONDS, cost / _CPU_SHARE), STEP_SECONDS)

    async def _run(self) -> None:
        while True:
            self.tick()
            await asyncio.sleep(self.pause)

    def _refresh(self) -> OverviewFrame:
        now, began = self._clock.now(), self._cpu()
        overview = self._compose(now)
        self._refreshed_at = now
        frame = self._frame
        is_due = frame is None or now - frame.made >= KEEPALIVE_SECONDS - TICK_SECONDS
        if frame is None or is_due or not frame.has_same_content(overview):
            frame = self._frame = OverviewFrame(0 if frame is None else frame.number + 1, overview, now, self._cpu)
            self._changed.set()
            self._changed = asyncio.Event()
        self._last_cost = self._cpu() - began
        return frame

    def _compose(self, now: float) -> wire.Overview:
        now_ms = self._wall_ms()
        facts = self._collect_facts(now_ms)
        overview = facts.overview
        self._has_served = self._has_served or any(map(is_serving, overview.specialists))
        found = findings.detect_findings(facts, self._ensemble, self._tracker.reported)
        if not self._has_served and now - self._began < _START_SECONDS:
            found = [each for each in found if each.kind != "nobody_serves"]
        overview.troubles.extend(findings.worst_first(self._tracker.step(found, now, now_ms)))
        overview.headline = headline(overview)
        return overview

    def _collect_facts(self, now_ms: int) -> OverviewFacts:
        """Compose the overview without its findings, and collect the facts for detecting them."""
        ensemble, services, traffic, cache = self._ensemble, self._services, self.traffic, self._cache
        names, control = ensemble.names, services.control
        by_specialist = {name: traffic.of_specialist(name) for name in names}
        recent = {name: cache.recent(name) for name in names}
        usual = {name: cache.usual(name) for name in names}
        seconds, router = traffic.seconds(), traffic.of_router()
        overview = wire.Overview(
            at_unix_ms=now_ms,
            ensemble=ensemble.name,
            version=__version__,
            knobs=control.knobs(),
            shadow_rows=services.agreement.rows(),
            shadow_counts=services.shadow_counts(),
            receipts=traffic.lines(),
            audit=self._audit.entries(),
            store_trouble=control.store_trouble,
            unrouted_per_second=router.unrouted / seconds,
        )
        views = {
            each.name: overview.specialists.add(
                name=each.name,
                describe=each.describe,
                rates=rates_to_wire(by_specialist[each.name], seconds),
                cache_reuse=recent[each.name].share,
                usual_cache_reuse=usual[each.name].share,
            )
            for each in ensemble.specialists
        }
        for slo in services.slos.all():
            if slo.specialist in views:
                views[slo.specialist].slo.CopyFrom(slo)
        for breaker in control.breakers():
            if breaker.specialist in views:
                view = views[breaker.specialist]
                (view.candidate if breaker.lane_status == "candidate" else view.breaker).CopyFrom(breaker)
        for lane in control.lanes():
            if lane.status in _SHOWN_LANES and lane.specialist in views:
                views[lane.specialist].lanes.append(lane)
        loads = self._loads()
        for info in control.replicas():
            if info.specialist in views:
                views[info.specialist].replicas.add(info=info, load=loads.get(info.name))
        for name, specialist in control.fleet_status.specialists.items():
            if name in views:
                views[name].fresh = specialist.lane.fresh
        return OverviewFacts(overview, by_specialist, router, recent, usual)

    def _sample_replicas(self) -> None:
        loads, replicas = self._loads(), self._services.control.replicas()
        for info in replicas:
            if info.name in loads:
                self._cache.sample(info.specialist, info.name, loads[info.name])
        known = frozenset(self._ensemble.names)
        self.traffic.forget_all_but(known)
        self._cache.forget_all_but(known, {info.name for info in replicas})

    def _loads(self) -> dict[str, specialist_pb2.LoadReport]:
        """Return the last reports of the connected replicas, by name."""
        return {
            each.name: each.report for each in self._fleet.replicas if each.is_connected and each.report is not None
        }
