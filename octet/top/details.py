"""All about one specialist, below the rows."""

from collections.abc import Iterator

from octet.operate.figures import share, since
from octet.operate.slo import burn, figure, seconds
from octet.sdk.operating import BreakerInfo, LaneInfo
from octet.sdk.overview import Overview, Rates, ReceiptLine, ReplicaView, SpecialistView
from octet.sdk.slo import Objective
from octet.top.figures import rate
from octet.top.text import Line, Tone, line

_RECEIPTS = 5


def details(view: SpecialistView, overview: Overview) -> list[Line]:
    about = f": {view.describe}" if view.describe else ""
    return [
        line(f"{view.name}{about}", "bold"),
        *_rates(view.rates),
        *_cache(view),
        *([] if view.slo is None else [_objective(each) for each in view.slo.objectives]),
        *_breakers(view),
        *(_lane(each, overview.at_unix_ms) for each in view.lanes),
        *(_replica(each) for each in view.replicas),
        *_receipts(view.name, overview),
    ]


def _rates(rates: Rates | None) -> Iterator[Line]:
    if rates is not None:
        sure = "" if rates.confidence is None else f", mean confidence {rates.confidence:.2f}"
        names = ("requests", "answered", "refused", "failed", "spilled", "shadowed")
        nobody = f" ({rate(rates.unserved)} of them with nobody left to answer)" if rates.unserved > 0 else ""
        told = (f"{rate(getattr(rates, name))} {name}{nobody if name == 'refused' else ''}" for name in names)
        yield line(f"a second: {', '.join(told)}{sure}", "bad" if nobody else "plain")


def _cache(view: SpecialistView) -> Iterator[Line]:
    if view.cache_reuse is not None:
        usual = "" if view.usual_cache_reuse is None else f", usually {share(view.usual_cache_reuse)}"
        yield line(f"cache: {share(view.cache_reuse)} of the prompt tokens were found{usual}")


def _objective(objective: Objective) -> Line:
    tone: Tone = "plain" if objective.current is None else "good" if objective.met else "bad"
    state = "not measured" if objective.current is None else "kept" if objective.met else "not kept"
    burns = ", ".join(burn(each) for each in objective.burns)
    target, current = figure(objective, objective.target), figure(objective, objective.current)
    return line(f"objective {objective.name}: {current} of {target}, {state}; burn {burns or '-'}", tone)


def _breakers(view: SpecialistView) -> Iterator[Line]:
    for name, breaker in (("breaker", view.breaker), ("candidate", view.candidate)):
        if breaker is not None:
            yield line(f"{name}: {_breaker(breaker)}")


def _breaker(breaker: BreakerInfo) -> str:
    held = f", held {breaker.hold} by {breaker.hold_by}: {breaker.hold_why}" if breaker.hold else ""
    passed = f"{share(breaker.pass_rate) or '-'} of {breaker.samples} passed"
    fallback = f", fallback {breaker.fallback}" if breaker.fallback else ""
    outlook = f"; {breaker.outlook}" if breaker.outlook else ""
    return f"{breaker.state.replace('_', ' ')}{held}, {passed}{fallback}{outlook}"


def _lane(lane: LaneInfo, now_ms: int) -> Line:
    ago = since(lane.since_unix_ms, now_ms)
    told = f"lane {lane.number}: {lane.adapter or 'the bare model'}, {lane.status.replace('_', ' ')}"
    passed = f", {share(lane.pass_rate)} of {lane.samples} passed" if lane.pass_rate is not None else ""
    where = f", on {lane.resident} of {lane.replicas} replicas" if lane.replicas else ""
    return line(told + (f" for {ago}" if ago else "") + passed + where)


def _replica(replica: ReplicaView) -> Line:
    info, load = replica.info, replica.load
    if info is None:
        return line("replica: nothing is known of it")
    tone: Tone = "plain" if info.status == "serving" else "warn"
    told = f"replica {info.name}: {info.status.replace('_', ' ')}"
    if load is None:
        return line(f"{told}, has not reported", tone)
    blocks = "" if load.blocks is None else f", {load.blocks.used} of {load.blocks.total} blocks used"
    wait = "" if load.usual_wait is None else f", a usual wait of {seconds(load.usual_wait)}"
    notes = [name for name, holds in (("refusing", load.refusing), ("preempting", load.preempting)) if holds]
    busy = f"{load.running} of {load.max_running} running, {load.waiting} of {load.max_waiting} waiting"
    return line(", ".join([f"{told}, {busy}{blocks}{wait}", *notes]), "warn" if notes else tone)


def _receipts(name: str, overview: Overview) -> Iterator[Line]:
    for each in [found for found in overview.receipts if found.specialist == name][:_RECEIPTS]:
        yield line(f"request {_receipt(each, overview.at_unix_ms)}", "plain" if each.outcome == "answered" else "warn")


def _receipt(found: ReceiptLine, now_ms: int) -> str:
    why = f" ({found.reason})" if found.reason else ""
    return f"{found.request_id}: {found.outcome}{why} in {seconds(found.total)}, {since(found.at_unix_ms, now_ms)} ago"
