"""An overview, put together from everybody who knows a part of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from octet.config.ensemble import Ensemble
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2
from router.operator.controls import ShadowCounts
from router.view.agreement import Agreement
from router.view.audit_tail import AuditTail
from router.view.cache_reuse import CacheReuse, Reuse
from router.view.facts import Facts
from router.view.sources import Controlled, Loads, Slos
from router.view.traffic import Traffic, rates_of

_SHOWN_LANES = frozenset({"serving", "candidate", "previous"})


@dataclass(frozen=True, slots=True)
class Parts:
    control: Controlled
    loads: Loads
    slos: Slos | None
    """None: nobody measures them."""
    shadow_counts: ShadowCounts
    agreement: Agreement
    audit: AuditTail
    traffic: Traffic
    cache: CacheReuse
    version: str


def compose(parts: Parts, ensemble: Ensemble, now_ms: int) -> Facts:
    """Everything but the troubles, and what they are found in."""
    known, loads = _known(parts), parts.loads()
    names = ensemble.names
    minutes = {name: parts.traffic.minute(name) for name in names}
    recent = {name: parts.cache.recent(name) for name in names}
    usual = {name: parts.cache.usual(name) for name in names}
    seconds, door = parts.traffic.seconds(), parts.traffic.door()
    overview = wire.Overview(
        at_unix_ms=now_ms,
        ensemble=ensemble.name,
        version=parts.version,
        knobs=parts.control.knobs(),
        shadow_rows=parts.agreement.rows(),
        shadow_counts=parts.shadow_counts(),
        receipts=parts.traffic.lines(),
        audit=parts.audit.entries(),
        store_trouble=parts.control.store_trouble,
        unrouted_per_second=door.unrouted / seconds,
    )
    for each in ensemble.specialists:
        view = overview.specialists.add(name=each.name, describe=each.describe)
        known.put(view, loads)
        view.rates.CopyFrom(rates_of(minutes[each.name], seconds))
        _put_reuse(view, recent[each.name], usual[each.name])
    return Facts(overview, minutes, door, recent, usual)


def forget_gone(parts: Parts, ensemble: Ensemble, replicas: Iterable[str]) -> None:
    """Specialists and replicas that are there no more."""
    names = frozenset(ensemble.names)
    parts.traffic.forget_all_but(names)
    parts.cache.forget_all_but(names, frozenset(replicas))


@dataclass(frozen=True, slots=True)
class _Known:
    """By specialist."""

    slos: Mapping[str, wire.Slo]
    breakers: Mapping[str, wire.BreakerInfo]
    candidates: Mapping[str, wire.BreakerInfo]
    lanes: Mapping[str, list[wire.LaneInfo]]
    replicas: Mapping[str, list[wire.ReplicaInfo]]
    is_fresh: Callable[[str], bool]

    def put(self, view: wire.SpecialistView, loads: Mapping[str, specialist_pb2.LoadReport]) -> None:
        name = view.name
        if name in self.slos:
            view.slo.CopyFrom(self.slos[name])
        if name in self.breakers:
            view.breaker.CopyFrom(self.breakers[name])
        if name in self.candidates:
            view.candidate.CopyFrom(self.candidates[name])
        view.lanes.extend(self.lanes.get(name, ()))
        view.fresh = self.is_fresh(name)
        for info in self.replicas.get(name, ()):
            view.replicas.add(info=info, load=loads.get(info.name))


def _known(parts: Parts) -> _Known:
    control = parts.control
    breakers: dict[str, wire.BreakerInfo] = {}
    candidates: dict[str, wire.BreakerInfo] = {}
    for breaker in control.breakers():
        (candidates if breaker.lane_status == "candidate" else breakers)[breaker.specialist] = breaker
    lanes: dict[str, list[wire.LaneInfo]] = {}
    for lane in control.lanes():
        if lane.status in _SHOWN_LANES:
            lanes.setdefault(lane.specialist, []).append(lane)
    replicas: dict[str, list[wire.ReplicaInfo]] = {}
    for info in control.replicas():
        replicas.setdefault(info.specialist, []).append(info)
    specialists = control.standing.specialists

    def is_fresh(name: str) -> bool:
        return name in specialists and specialists[name].lane.fresh

    slos = {} if parts.slos is None else {each.specialist: each for each in parts.slos.all()}
    return _Known(slos, breakers, candidates, lanes, replicas, is_fresh)


def _put_reuse(view: wire.SpecialistView, recent: Reuse, usual: Reuse) -> None:
    if recent.share is not None:
        view.cache_reuse = recent.share
    if usual.share is not None:
        view.usual_cache_reuse = usual.share
