"""Drained and restarted replicas, and the status of breakers, lanes and replicas, for operators and for routing."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial

from admission.breakers import BreakerRecord, breaker_status, describe_breaker_outlook, may_serve
from admission.budgets import Counts
from admission.floors import Standing
from admission.lanes import LaneRecord, SpecialistLanes, lane_id
from octet.config.ensemble import SpecialistConfig
from octet.terminal import pluralize
from octet.v1 import operator_pb2 as wire
from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row, conflict, unknown_name
from router.control.breakers import CorrectnessBreakers
from router.control.knobs import KnobController
from router.control.lanes import LaneRegistry
from router.control.replicas import ObservedReplica
from router.control.state import REPLICA, RESTARTS, SharedState, can_serve_lane, holds_lane, matches_lane
from router.control.weights import SupervisedWeights
from router.dispatch.replicas.replica import ReplicaRestart
from router.routing.dispatch_plan import FleetStatus, LaneStatus, SpecialistStatus, configured_knobs, configured_status
from router.store.rows import DocumentBody

_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 1000  # restarts, so that a wrong report cannot spoil the count
_REPLICA_FIELDS = ObservedReplica.__dataclass_fields__.keys() & wire.ReplicaInfo.DESCRIPTOR.fields_by_name.keys()


class DrainedReplicas:
    def __init__(self, state: SharedState, audit: AuditWriter) -> None:
        self._state = state
        self._audit = audit

    def names(self) -> frozenset[str]:
        return frozenset(document.key for document in self._state.documents.of_kind(REPLICA))

    def all_drained(self, specialist: str) -> bool:
        """Return whether operators have drained every replica that can answer now, or could after reconnecting."""
        names = self.names()
        able = self._able(specialist) if names else ()
        return bool(able) and all(each.name in names for each in able)

    def is_last(self, replica: str, specialist: str) -> bool:
        names = self.names() | {replica}
        return all(each.name in names for each in self._able(specialist) if each.linked)

    def _able(self, specialist: str) -> list[ObservedReplica]:
        lanes, replicas = self._state.lanes(specialist), self._state.all_replicas(specialist)
        return [each for each in replicas if lanes is None or not each.linked or matches_lane(each, lanes.serving)]

    async def drain(self, replica: str, author: ChangeAuthor, now: float) -> None:
        specialist = self._find_specialist(replica)
        self._state.refresh()

        def revise(body: DocumentBody | None) -> DocumentRevision:
            if body is not None:
                raise conflict(f"{replica} was already drained by {body.get('by')}: {body.get('why')}", "replica")
            last = f"; no replica of {specialist} is left to answer" if self.is_last(replica, specialist) else ""
            row = audit_row(now, author, "drain", replica, "open", f"drained{last}")
            return DocumentRevision({"by": author.who, "why": author.why, "since": now}, row)

        await self._audit.order(REPLICA, replica, revise)
        if self.is_last(replica, specialist):
            _log.warning("%s, drained by %s, was the last replica of %s that answers", replica, author.who, specialist)

    async def undrain(self, replica: str, author: ChangeAuthor, now: float) -> None:
        """Undrain a replica, even one that no longer exists. Raises Refusal for a replica that is not drained."""
        if replica not in self.names():
            self._find_specialist(replica)

        def revise(body: DocumentBody | None) -> DocumentRevision:
            if body is None:
                raise conflict(f"{replica} is not drained", "replica")
            return DocumentRevision(None, audit_row(now, author, "undrain", replica, "drained", "open"))

        await self._audit.order(REPLICA, replica, revise)

    def _find_specialist(self, replica: str) -> str:
        specialists = {each.name: each.specialist for each in self._state.replicas.observe()}
        if replica not in specialists:
            raise unknown_name("replica", replica, specialists)
        return specialists[replica]


@dataclass(frozen=True, slots=True)
class RestartRecord:
    instance: str = ""  # the process that took over at the last restart
    at_ms: int = 0
    reason: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)  # by kind, see RESTART_KINDS
    by_supervisor: int = 0  # what the supervisor had counted at the last restart; 0 if unknown

    @classmethod
    def from_body(cls, body: DocumentBody) -> "RestartRecord":
        counts = {str(kind): int(number) for kind, number in body["counts"].items()}
        return cls(
            str(body["instance"]), int(body["at_ms"]), str(body["reason"]), counts, int(body.get("by_supervisor", 0))
        )

    @property
    def number(self) -> int:
        return sum(self.counts.values())

    def add(self, restart: ReplicaRestart, now: float) -> "RestartRecord":
        """Add the restart, and under its kind those since the last one that no router saw. A new supervisor counts
        from 0, so a smaller number tells nothing."""
        number = min(max(1, restart.number - self.by_supervisor), _MOST_AT_ONCE)
        counts = {**self.counts, restart.kind: self.counts.get(restart.kind, 0) + number}
        at_ms = restart.started_ms or _ms(now)
        return RestartRecord(restart.instance, at_ms, restart.reason, counts, restart.number)


class ReplicaRestarts:
    """Records each restart of a replica once for all routers. The process that took over identifies the restart."""

    def __init__(self, state: SharedState, audit: AuditWriter) -> None:
        self._state = state
        self._audit = audit
        self._recorded: dict[str, str] = {}  # the instance that took over, by replica

    def record(self, replica: str) -> RestartRecord:
        return self._state.documents.read(RESTARTS, replica, RestartRecord.from_body) or RestartRecord()

    async def tick(self, now: float) -> None:
        seen = {each.name: each.restart for each in self._state.replicas.observe() if each.restart is not None}
        for name, restart in seen.items():
            if self._recorded.get(name) != restart.instance:
                await self._audit.act(RESTARTS, name, partial(_record_restart, name, restart, now))
                self._recorded[name] = restart.instance
        self._recorded = {name: instance for name, instance in self._recorded.items() if name in seen}


def _record_restart(
    name: str, restart: ReplicaRestart, now: float, body: DocumentBody | None
) -> DocumentRevision | None:
    """Add the restart, unless another router has recorded it or a later one."""
    before = RestartRecord() if body is None else RestartRecord.from_body(body)
    if restart.instance == before.instance or 0 < restart.started_ms < before.at_ms:
        return None
    after = before.add(restart, now)
    author, numbers = (
        ChangeAuthor("octet", restart.reason),
        (pluralize(each.number, "restart") for each in (before, after)),
    )
    return DocumentRevision({**asdict(after)}, audit_row(now, author, "restart", name, *numbers))


def merge_restart_documents(stored: DocumentBody, own: DocumentBody) -> DocumentBody | None:
    """Keep the record of the later restart."""
    return own if own["at_ms"] > stored["at_ms"] else None


@dataclass(frozen=True)
class ControlStatus:
    _state: SharedState
    _breakers: CorrectnessBreakers
    _knobs: KnobController
    _lanes: LaneRegistry
    _drained: DrainedReplicas
    _restarts: ReplicaRestarts
    _weights: SupervisedWeights

    def fleet(self, now: float) -> FleetStatus:
        ensemble = self._state.ensemble
        return FleetStatus(
            specialists={each.name: self._specialist(each, now) for each in ensemble.specialists},
            configured_knobs=configured_knobs(ensemble.intents),
            knob_overrides=self._knobs.overrides(),
            drained=self._drained.names(),
        )

    def breaker(self, specialist: str, now: float) -> wire.BreakerInfo:
        record, standing = self._breakers.record(specialist), self._breakers.standing(specialist, now)
        info = self._breaker_info(specialist, standing)
        info.state, info.hold = record.state, record.hold or ""
        info.hold_by, info.hold_why = record.hold_by, record.hold_why
        info.since_unix_ms = _ms(record.hold_since if record.hold else record.since)
        rules, signs = self._breakers.rules(specialist, now), self._breakers.signs(specialist, now)
        outlook = describe_breaker_outlook(record, standing.counts, now, rules, signs)
        info.collapse, lanes = record.collapse, self._state.lanes(specialist)
        info.suspicion = "" if lanes is None else self._suspicion(lanes, lanes.serving, now)
        info.is_last_resort = self._is_last_resort(specialist, record, now)
        last_resort = "answers what nothing else can" if info.is_last_resort else ""
        suspicious = info.suspicion if not record.collapse else ""
        remarks = (each for each in (last_resort, suspicious, outlook) if each)
        info.outlook = self._with_remarks(specialist, "; ".join(remarks))
        return info if lanes is None else _with_lane(info, lanes.serving)

    def candidate(self, specialist: str, now: float) -> wire.BreakerInfo | None:
        """Describe the candidate lane, if any, which gets only shadow traffic."""
        lanes = self._state.lanes(specialist)
        if lanes is None or lanes.candidate is None:
            return None
        lane = lanes.candidate
        info = self._breaker_info(specialist, self._breakers.standing(specialist, now, lane))
        info.state, info.since_unix_ms = "shadow_only", _ms(lane.since)
        info.outlook = self._outlook(lanes, lane, self._lanes.counts(lanes, now), now)
        info.suspicion = self._suspicion(lanes, lane, now)
        return _with_lane(info, lane)

    def lanes(self, specialist: str, now: float) -> list[wire.LaneInfo]:
        lanes = self._state.lanes(specialist)
        if lanes is None:
            return []
        counts = self._lanes.counts(lanes, now)
        found = [self._lane(lanes, lane, counts, now) for lane in reversed(lanes.lanes)]
        return [*self._starting(lanes), *found]

    def _starting(self, lanes: SpecialistLanes) -> Iterator[wire.LaneInfo]:
        """Describe the lane of weights that are starting, if any."""
        refresh = lanes.refresh
        coming = refresh.numbered(refresh.coming)
        if refresh.coming and coming is not None:
            yield wire.LaneInfo(
                specialist=lanes.specialist,
                number=lanes.next_number,
                revision=coming.revision,
                model=coming.model,
                status="starting",
                by=refresh.by,
                why=refresh.why,
                replicas=len(self._state.all_replicas(lanes.specialist)),
                outlook="a candidate as soon as its replicas run",
            )

    def replicas(self) -> list[wire.ReplicaInfo]:
        replicas, drained = self._state.replicas.observe(), self._drained.names()
        infos = [wire.ReplicaInfo(**{name: getattr(each, name) for name in _REPLICA_FIELDS}) for each in replicas]
        for info in infos:
            record = self._restarts.record(info.name)
            info.restarts, info.last_restart_reason = record.number, record.reason
            info.last_restart_unix_ms = record.at_ms
            if info.name in drained:
                info.status = "drained_by_operator"
        return infos

    def _specialist(self, config: SpecialistConfig, now: float) -> SpecialistStatus:
        state, name = self._state, config.name
        breaker, lanes, replicas = self._breakers.record(name), state.lanes(name), state.reachable(name)
        initial = configured_status(config)
        candidate = None if lanes is None else lanes.candidate
        is_held = candidate is not None and any(holds_lane(each, candidate) for each in replicas)
        unfit_reason = f"all replicas of {name} are drained by an operator" if self._drained.all_drained(name) else ""
        if lanes is not None and state.is_lost(name, lanes.serving):
            unfit_reason = f"no replica of {name} holds the adapters of its serving lane any more"
        adapter_names = initial.adapter_names
        if lanes is not None:  # the serving lane takes precedence, then the configuration, then the other lanes
            waiting = [lane for lane in (lanes.previous, candidate) if lane is not None]
            names = {ref.name: ref.load_name for lane in waiting for ref in lane.adapters}
            serving = {ref.name: ref.load_name for ref in lanes.serving.adapters}
            adapter_names = {**names, **adapter_names, **serving}
        return SpecialistStatus(
            name=name,
            lane=initial.lane if lanes is None else self._serving_lane(config, lanes.serving),
            correctness=breaker_status(breaker),
            serves=may_serve(breaker),
            reason="" if may_serve(breaker) else self._why_open(name, breaker, now),
            is_last_resort=self._is_last_resort(name, breaker, now),
            is_reachable=bool(replicas),
            unfit_reason=unfit_reason,
            candidate=self._lane_status(name, candidate) if candidate is not None and is_held else None,
            is_suspect=lanes is not None and not state.collapse.is_clear(lane_id(name, lanes.serving)),
            adapter_names=adapter_names,
            is_learning=self._breakers.floors.is_learning(name),
        )

    def _serving_lane(self, config: SpecialistConfig, lane: LaneRecord) -> LaneStatus:
        """Return the status of the serving lane. If replicas are reachable but none can serve it, return a substitute
        with the configured adapters that replicas hold. The substitute has no lane id, so that its answers count for no
        lane. A lane whose adapters are lost has no substitute."""
        state, replicas = self._state, self._state.reachable(config.name)
        if not replicas or state.is_lost(config.name, lane) or any(can_serve_lane(each, lane) for each in replicas):
            return self._lane_status(config.name, lane)
        names = [name for name in config.use_adapters if any(name in each.adapters for each in replicas)]
        lacking = frozenset(each.name for each in replicas if not all(name in each.adapters for name in names))
        adapters = tuple((name, name) for name in names)
        unfit = lacking if len(lacking) < len(replicas) else frozenset()
        return LaneStatus(lane.number, adapters=adapters, fresh=lane.fresh, unfit=unfit)

    def _lane_status(self, specialist: str, lane: LaneRecord) -> LaneStatus:
        mismatched = (each.name for each in self._state.reachable(specialist) if not matches_lane(each, lane))
        return LaneStatus(
            number=lane.number,
            lane_id=lane_id(specialist, lane),
            adapters=tuple((ref.name, ref.load_name) for ref in lane.adapters),
            revision=lane.revision,
            fresh=lane.fresh,
            unfit=frozenset((*mismatched, *self._weights.unfit(specialist, lane))),
        )

    def _is_last_resort(self, specialist: str, breaker: BreakerRecord, now: float) -> bool:
        """Whether it was demoted by a learned floor, and not by a configured one, a collapse or an operator. Its
        answers are worse than usual, but better than none; without them, nothing would show that it has recovered."""
        if may_serve(breaker) or breaker.hold or breaker.collapse:
            return False
        floor = self._breakers.standing(specialist, now).floor
        return floor is None or floor.is_learned

    def _why_open(self, specialist: str, breaker: BreakerRecord, now: float) -> str:
        if breaker.hold:
            return f"{specialist} is held open by an operator"
        if breaker.collapse:
            return f"{specialist} is {breaker.state.replace('_', '-')}: {breaker.collapse}"
        standing = self._breakers.standing(specialist, now)
        counts, below = standing.counts, "" if standing.floor is None else f" (floor {standing.floor})"
        return f"{specialist} is {breaker.state.replace('_', '-')}, {counts.good} of {counts.total} passed{below}"

    def _lane(
        self, lanes: SpecialistLanes, lane: LaneRecord, counts: Mapping[int, Counts], now: float
    ) -> wire.LaneInfo:
        weights = lanes.refresh.of_revision(lane.revision)
        own = counts.get(lane.number) or self._state.correctness.counts(lane_id(lanes.specialist, lane), now)
        return wire.LaneInfo(
            **{name: getattr(lane, name) for name in ("number", "digests", "revision", "status", "by", "why")},
            specialist=lanes.specialist,
            adapter=lane.name,
            since_unix_ms=_ms(lane.since),
            samples=own.total,
            outlook=self._outlook(lanes, lane, counts, now),
            model="" if weights is None else weights.model,
            resident=len(self._state.holders(lanes.specialist, lane)),
            replicas=len(self._state.all_replicas(lanes.specialist)),
            suspicion=self._suspicion(lanes, lane, now),
            pass_rate=own.rate,
        )

    def _suspicion(self, lanes: SpecialistLanes, lane: LaneRecord, now: float) -> str:
        """Return what makes the lane suspicious, whether or not it has collapsed; empty if nothing does."""
        if lane.status not in ("serving", "candidate"):
            return ""
        found = self._state.find_collapse(lanes, lane, now, suspect=True)
        return "" if found is None else str(found)

    def _breaker_info(self, specialist: str, standing: Standing) -> wire.BreakerInfo:
        config, rules = self._state.ensemble.specialist(specialist), self._state.ensemble.correctness
        info = wire.BreakerInfo(
            specialist=specialist,
            samples=standing.counts.total,
            min_samples=rules.min_samples,
            window_seconds=rules.window,
            fallback=config.fallback or "",
            verifier=standing.verifier,
            pass_rate=standing.counts.rate,
        )
        if standing.floor is not None:
            info.floor, info.floor_learned = standing.floor.rate, standing.floor.is_learned
        floors = self._breakers.floors.in_force(specialist)
        judged = standing.by_verifier
        for name in sorted({*judged, *floors}):
            counts, floor = judged.get(name, Counts()), floors.get(name)
            row = info.verifiers.add(verifier=name, samples=counts.total, pass_rate=counts.rate)
            if floor is not None:
                row.floor, row.floor_learned = floor.rate, floor.is_learned
        return info

    def _outlook(self, lanes: SpecialistLanes, lane: LaneRecord, counts: Mapping[int, Counts], now: float) -> str:
        floors = self._breakers.floors.in_force(lanes.specialist)
        outlook = lanes.outlook(lane.number, counts, self._state.ensemble.lanes, floors)
        if suspicion := self._suspicion(lanes, lane, now):
            outlook = f"{suspicion}; {outlook}"
        return self._with_remarks(lanes.specialist, outlook) if lane.status == "serving" else outlook

    def _with_remarks(self, specialist: str, outlook: str) -> str:
        is_drained = self._drained.all_drained(specialist)
        drained = "every replica that could answer is drained by an operator" if is_drained else ""
        return "; ".join(each for each in (self._lanes.remark(specialist), drained, outlook) if each)


def _with_lane(info: wire.BreakerInfo, lane: LaneRecord) -> wire.BreakerInfo:
    info.lane, info.lane_status = lane.number, lane.status
    info.adapters.extend(ref.name for ref in lane.adapters)
    return info


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
