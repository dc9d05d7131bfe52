"""Findings are problems shown to an operator. Detectors find them in an overview. A reported finding clears only when
its value is clearly better than the threshold."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from admission.budgets import Counts
from admission.floors import Floor
from octet.config.ensemble import Ensemble
from octet.v1 import overview_pb2 as wire
from router.dispatch.replicas.replica import DRAINED_REASON
from router.observe.overview.traffic import CacheReuse, RouterTraffic, SpecialistTraffic

NOTE, WARNING, CRITICAL = wire.Trouble.NOTE, wire.Trouble.WARNING, wire.Trouble.CRITICAL
Runbook = Literal["", "capacity", "bad-refresh", "both", "cache-drift", "wrong-specialist", "restarts"]
FindingKey = tuple[str, str]  # kind and subject
_DAY_MS = 86_400_000
RECENT_RESTART_MS = 900_000  # how long a restart of a replica is a finding
# measured in the store, so a restarted router reports them without waiting
_STORED_KINDS = frozenset({"correctness", "suspicious"})
MOST_FINDINGS = 64
SET_BY_ESCALATION = "escalation"
_SET_BY_CONFIGURATION = "configuration"
_ROUTER = "router"
_DRAINING = ("draining", "drained_by_operator")
LEAST_USUAL_REUSE = 0.1  # if the cache usually holds a smaller share of the prompts, a miss means nothing
CACHE_DRIFT, CACHE_DRIFT_CLEARS = 0.5, 0.75  # shares of the usual reuse
LEAST_RECENT_TOKENS = 2_000
LEAST_USUAL_TOKENS = 10_000
LEAST_FORECASTS = 50
# relative error of the worst tenth of the forecasts: single requests are hard to predict, and up to 0.9 is usual
ESTIMATOR_ERROR, ESTIMATOR_CLEARS = 2.0, 1.5
_BURN_CLEARS = 0.5
_NEARLY_ALL = 0.9  # share of breaching samples at which an objective is broken, even with a large budget
CLEAR_OF_FLOOR = 0.01  # distance above the floor at which a low pass rate has recovered
LEAST_VERIFIED = 20
# share of verified answers that only the shadow passed, less the share that only the primary passed
ONE_SIDED, ONE_SIDED_CLEARS = 0.1, 0.05
TWO_SIGMA = 4.0
LOW_CONFIDENCE, CONFIDENCE_CLEARS = 0.4, 0.45  # mean confidence of the classifier's decisions for one specialist
UNROUTABLE_SHARE, UNROUTABLE_CLEARS = 0.2, 0.1  # share of all requests that fit no specialist
_CORRECTNESS_KINDS = frozenset({"correctness", "breaker_open", "suspicious"})
_CAPACITY_KINDS = frozenset({"refusing", "burning", "escalated"})
FINDING_KINDS = (  # the worst first
    *("nobody_serves", "no_replica", "unserved", "failing", "correctness", "refusing", "burning"),
    *("breaker_open", "escalated", "replica_hung", "replica_lost", "replica_restarted", "missed_objective"),
    *("suspicious", "misrouting", "cache_drift", "estimator", "store_down"),
    *("breaker_held", "draining", "fresh_lane", "knob_set"),
)
_RANKS = {kind: rank for rank, kind in enumerate(FINDING_KINDS)}


@dataclass(frozen=True, slots=True)
class Finding:
    severity: wire.Trouble.Severity
    kind: str
    subject: str
    what: str  # a sentence with figures but without the time
    runbook: Runbook = ""
    specialist: str = ""
    since_ms: int = 0  # 0 if unknown: the time of its first detection is used

    @property
    def key(self) -> FindingKey:
        return self.kind, self.subject


class FindingDelays(NamedTuple):
    """A finding is reported after it has lasted `before` seconds, and cleared after `after` seconds of absence."""

    before: float = 0.0
    after: float = 0.0


# for measurements, which fluctuate; other findings are reported immediately
_DELAYS = {
    "no_replica": FindingDelays(2.0, 5.0),
    "replica_hung": FindingDelays(0.0, 5.0),
    "replica_lost": FindingDelays(5.0, 5.0),
    "refusing": FindingDelays(5.0, 30.0),
    "unserved": FindingDelays(5.0, 30.0),
    "failing": FindingDelays(5.0, 30.0),
    "burning": FindingDelays(10.0, 60.0),
    "missed_objective": FindingDelays(5.0, 30.0),
    "correctness": FindingDelays(5.0, 60.0),
    "suspicious": FindingDelays(0.0, 60.0),
    "cache_drift": FindingDelays(30.0, 120.0),
    "misrouting": FindingDelays(30.0, 120.0),
    "estimator": FindingDelays(30.0, 120.0),
}


def get_delays(kind: str) -> FindingDelays:
    return _DELAYS.get(kind, FindingDelays())


@dataclass(frozen=True, slots=True)
class OverviewFacts:
    overview: wire.Overview
    traffic: Mapping[str, SpecialistTraffic] = field(default_factory=dict)
    router: RouterTraffic = field(default_factory=RouterTraffic)
    recent: Mapping[str, CacheReuse] = field(default_factory=dict)
    usual: Mapping[str, CacheReuse] = field(default_factory=dict)


class Fallback(NamedTuple):
    name: str  # empty if no fallback answers
    what: str


def find_fallback(view: wire.SpecialistView, specialists: Iterable[wire.SpecialistView]) -> Fallback:
    """Return the fallback that answers now, if any, and a text that says what happens to the specialist's requests."""
    others = {each.name: each for each in specialists if each.name != view.name}
    fallback = view.breaker.fallback
    if fallback in others and is_serving(others[fallback]):
        return Fallback(fallback, f"{fallback} answers instead")
    missing = f"its fallback {fallback} is not serving either" if fallback else "it has no fallback"
    if is_last_resort(view):
        return Fallback("", f"{missing}: it still answers what nothing else can")
    unless = " unless they have another second choice" if any(map(is_serving, others.values())) else ""
    return Fallback("", f"{missing}: requests are refused{unless}")


def is_serving(view: wire.SpecialistView) -> bool:
    return not is_breaker_open(view.breaker) and any(is_replica_up(each.info) for each in view.replicas)


def is_last_resort(view: wire.SpecialistView) -> bool:
    """Whether it is demoted, but answers what nothing else can."""
    return view.breaker.is_last_resort and any(is_replica_up(each.info) for each in view.replicas)


def is_breaker_open(breaker: wire.BreakerInfo) -> bool:
    if breaker.hold:
        return breaker.hold == "open"
    return breaker.state in ("shadow_only", "recovering")


def is_replica_up(info: wire.ReplicaInfo) -> bool:
    return info.status == "serving" and info.health_breaker != "open"


def has_restarted(info: wire.ReplicaInfo, now_ms: int) -> bool:
    """Return whether the replica's last restart was recent."""
    return info.restarts > 0 and now_ms - info.last_restart_unix_ms < RECENT_RESTART_MS


def is_restart_planned(info: wire.ReplicaInfo) -> bool:
    """Return whether the replica had announced the stop before its last restart."""
    return info.last_restart_reason == DRAINED_REASON


def missed_objectives(view: wire.SpecialistView) -> list[wire.Objective]:
    """Return the objectives that are measured and missed, however few samples there are."""
    return [each for each in view.slo.objectives if not each.met and (each.HasField("current") or _samples(each))]


def _samples(objective: wire.Objective) -> int:
    return max((burn.samples for burn in objective.burns[:1]), default=0)


@dataclass(slots=True)
class _TrackedFinding:
    finding: Finding
    first: float
    first_ms: int
    last: float
    last_ms: int
    is_reported: bool = False


class FindingTracker:
    """Decides when a finding is reported and cleared. Short gaps do not interrupt a finding."""

    def __init__(self) -> None:
        self._tracked: dict[FindingKey, _TrackedFinding] = {}
        self._began: float | None = None

    @property
    def reported(self) -> frozenset[FindingKey]:
        return frozenset(key for key, each in self._tracked.items() if each.is_reported)

    def step(self, found: Iterable[Finding], now: float, now_ms: int) -> list[wire.Trouble]:
        """Return the findings to report, unordered. `now` is in monotonic seconds, `now_ms` in Unix milliseconds."""
        self._began = now if self._began is None else self._began
        for finding in found:
            each = self._tracked.get(finding.key)
            if each is None:
                each = self._tracked[finding.key] = _TrackedFinding(finding, now, now_ms, now, now_ms)
            each.finding, each.last, each.last_ms = finding, now, now_ms
            before = get_delays(finding.kind).before
            is_known = finding.kind in _STORED_KINDS and now - self._began < before
            each.is_reported = each.is_reported or each.last - each.first >= before or is_known
        for key, each in list(self._tracked.items()):
            lingers = each.is_reported and now - each.last < get_delays(each.finding.kind).after
            if each.last < now and not lingers:
                del self._tracked[key]
        return [_finding_to_wire(each, each.last < now, now_ms) for each in self._tracked.values() if each.is_reported]


def _finding_to_wire(each: _TrackedFinding, is_over: bool, now_ms: int) -> wire.Trouble:
    finding = each.finding
    since = min(finding.since_ms or each.first_ms, now_ms)
    over = f"resolved at {format_moment(each.last_ms, now_ms)}, still watched: " if is_over else ""
    return wire.Trouble(
        severity=finding.severity,
        kind=finding.kind,
        subject=finding.subject,
        text=f"{finding.subject}: {over}{finding.what} since {format_moment(since, now_ms)}",
        since_unix_ms=since,
        runbook=finding.runbook,
    )


def format_moment(at_ms: int, now_ms: int) -> str:
    form = "%H:%M UTC" if now_ms - at_ms < _DAY_MS else "%Y-%m-%d %H:%M UTC"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)


def format_percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 1 or percent == 0 else f"{percent:.1g} %"


def format_percents(share: float, limit: float) -> tuple[str, str]:
    """Format both shares with the same number of decimals: enough to tell them apart, but at most two."""
    apart = abs(share - limit)
    is_whole = abs(100 * limit - round(100 * limit)) < 1e-9
    digits = 0 if apart >= 0.01 and is_whole else 1 if apart >= 0.001 else 2
    return f"{100 * share:.{digits}f} %", f"{100 * limit:.{digits}f} %"


def shorten(text: str, most: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def detect_findings(facts: OverviewFacts, ensemble: Ensemble, reported: Container[FindingKey] = ()) -> list[Finding]:
    found = [
        *_detect_load(facts, ensemble, reported),
        *_detect_answers(facts, ensemble, reported),
        *_detect_operations(facts.overview),
    ]
    wrong = {each.specialist for each in found if each.kind in _CORRECTNESS_KINDS}
    both = wrong & {each.specialist for each in found if each.kind in _CAPACITY_KINDS and each.specialist}
    kinds = _CORRECTNESS_KINDS | _CAPACITY_KINDS | {"missed_objective"}
    return [replace(each, runbook="both") if each.specialist in both and each.kind in kinds else each for each in found]


def worst_first(findings: Iterable[wire.Trouble]) -> list[wire.Trouble]:
    def badness(finding: wire.Trouble) -> tuple[int, int, str, str]:
        return -finding.severity, _RANKS.get(finding.kind, len(_RANKS)), finding.subject, finding.kind

    return sorted(findings, key=badness)[:MOST_FINDINGS]


def spell_objective(objective: wire.Objective) -> str:
    name: str = objective.name.replace("_", " ")
    return name.replace("ttft", "time to first token").replace("itl", "time between tokens")


def _detect_load(facts: OverviewFacts, ensemble: Ensemble, reported: Container[FindingKey]) -> Iterator[Finding]:
    for view in facts.overview.specialists:
        name, traffic = view.name, facts.traffic.get(view.name, SpecialistTraffic())
        total = traffic.requests
        parts: tuple[tuple[str, int, str, Runbook], ...] = (
            ("refusing", traffic.refused - traffic.unserved, "refused for lack of capacity", "capacity"),
            ("unserved", traffic.unserved, "refused because it is not serving and no fallback answered", "bad-refresh"),
            ("failing", traffic.failed, "failed", ""),
        )
        for kind, part, end, runbook in parts:
            if _is_excessive(part, total, (kind, name), ensemble, reported):
                what = f"{format_percent(part / total)} of requests {end}"
                yield Finding(CRITICAL, kind, name, what, runbook, name)
        yield from _burning(view, ensemble, reported)
        yield from _cache_drift(name, facts.recent.get(name), facts.usual.get(name), reported)
        yield from _bad_estimates(view, reported)
    yield from _escalated(facts.overview)
    router = facts.router
    if _is_excessive(router.no_room, router.requests, ("refusing", _ROUTER), ensemble, reported):
        what = f"{format_percent(router.no_room / router.requests)} of requests refused because the router is full"
        yield Finding(CRITICAL, "refusing", _ROUTER, what, "capacity")


def _is_excessive(part: int, whole: int, key: FindingKey, ensemble: Ensemble, reported: Container[FindingKey]) -> bool:
    rules = ensemble.escalation
    if whole < rules.min_requests:
        return False
    share = part / whole
    return share >= rules.calm and share > 0 if key in reported else share > rules.refused


def _burning(view: wire.SpecialistView, ensemble: Ensemble, reported: Container[FindingKey]) -> Iterator[Finding]:
    """Yield findings if latency objectives burn their error budget too fast, or are missed; correctness has separate
    findings."""
    factor, alert_burn = _BURN_CLEARS if ("burning", view.name) in reported else 1.0, ensemble.slo.alert_burn
    found = []
    for each in view.slo.objectives:
        budget = 1 - each.share  # if it is large, the burn rate stays below the alert even if every sample breaches
        alert = min(alert_burn, _NEARLY_ALL / budget) if budget > 0 else alert_burn
        if each.name != "correctness" and _burn(each, ensemble) >= alert * factor:
            found.append((_burn(each, ensemble), each))
    if found:
        rate, worst = max(found, key=lambda pair: (pair[0], pair[1].name))
        more = f"; {len(found) - 1} more objectives burn as well" if len(found) > 1 else ""
        what = f"{_compare_with_target(worst)}: its error budget burns {rate:.3g} times too fast{more}"
        yield Finding(CRITICAL, "burning", view.name, what, "capacity", view.name)
    missed = [each for each in missed_objectives(view) if each.name != "correctness"]
    if missed and ("burning", view.name) not in reported:
        more = f"; {len(missed) - 1} more objectives are missed" if len(missed) > 1 else ""
        samples = f"{_samples(missed[0]):,} sample{'s' if _samples(missed[0]) != 1 else ''}"
        what = f"{_compare_with_target(missed[0])} ({samples}){more}"
        yield Finding(WARNING, "missed_objective", view.name, what, "capacity", view.name)


def _compare_with_target(objective: wire.Objective) -> str:
    now = f" is {objective.current:.3g} s" if objective.HasField("current") else ""
    return f"{spell_objective(objective)}{now}, the target is {objective.target:.3g} s"


def _burn(objective: wire.Objective, ensemble: Ensemble) -> float:
    """Return the lowest burn rate of all windows; 0 if one of them has too few samples."""
    burns = objective.burns
    if not burns or any(burn.samples < ensemble.escalation.min_requests or not burn.HasField("rate") for burn in burns):
        return 0.0
    return float(min(burn.rate for burn in burns))


def _cache_drift(
    name: str, recent: CacheReuse | None, usual: CacheReuse | None, reported: Container[FindingKey]
) -> Iterator[Finding]:
    if recent is None or usual is None:
        return
    if recent.prompt_tokens < LEAST_RECENT_TOKENS or usual.prompt_tokens < LEAST_USUAL_TOKENS:
        return
    now, before = recent.share or 0.0, usual.share or 0.0
    limit = before * (CACHE_DRIFT_CLEARS if ("cache_drift", name) in reported else CACHE_DRIFT)
    if before >= LEAST_USUAL_REUSE and now < limit:
        evicted = f"; {recent.evicted_blocks:,} blocks evicted" if recent.evicted_blocks else ""
        shares = f"{format_percent(now)} of prompt tokens found in the cache, {format_percent(before)}"
        what = f"{shares} in the hour before{evicted}"
        yield Finding(WARNING, "cache_drift", name, what, "cache-drift", name)


def _bad_estimates(view: wire.SpecialistView, reported: Container[FindingKey]) -> Iterator[Finding]:
    for replica in view.replicas:
        error, name = replica.load.estimate_error, replica.info.name
        if error.num_requests < LEAST_FORECASTS or not error.HasField("total_p90"):
            continue
        if error.total_p90 > (ESTIMATOR_CLEARS if ("estimator", name) in reported else ESTIMATOR_ERROR):
            what = f"one admission forecast in ten is wrong by {format_percent(error.total_p90)} or more"
            yield Finding(WARNING, "estimator", name, what, "capacity", view.name)


def _escalated(overview: wire.Overview) -> Iterator[Finding]:
    """Yield one finding per specialist, which names the intents that overload it."""
    found: dict[str, dict[str, int]] = {}
    for knob in overview.knobs:
        intent, _, specialist = knob.name.rpartition(".")[0].partition("/")
        if knob.set_by == SET_BY_ESCALATION and specialist:
            since = found.setdefault(specialist, {})
            since[intent] = min(knob.since_unix_ms, since.get(intent, knob.since_unix_ms))
    for specialist, since in found.items():
        what = f"escalation relieves it of requests of {shorten(', '.join(since))}"
        yield Finding(WARNING, "escalated", specialist, what, "capacity", specialist, min(since.values()))


def _detect_answers(facts: OverviewFacts, ensemble: Ensemble, reported: Container[FindingKey]) -> Iterator[Finding]:
    specialists = facts.overview.specialists
    for view in specialists:
        name, breaker = view.name, view.breaker
        yield from _below_floor(view, reported)
        if breaker.suspicion and not is_breaker_open(breaker):
            yield Finding(WARNING, "suspicious", name, breaker.suspicion, "bad-refresh", name)
        if breaker.hold:
            yield _held(breaker, find_fallback(view, specialists))
        elif is_breaker_open(breaker):
            yield _demoted(breaker, find_fallback(view, specialists))
        if view.fresh:
            lane = next((each for each in view.lanes if each.status == "serving"), wire.LaneInfo())
            model = shorten(lane.adapter) or "the bare model"
            what = f"its lane is fresh ({model}, {lane.samples:,} verdicts), so more of its answers are sampled"
            yield Finding(NOTE, "fresh_lane", name, what, "", name, lane.since_unix_ms)
        is_reported = ("misrouting", name) in reported
        what = _second_opinions(name, facts.overview, is_reported)
        if what := what or _low_confidence(name, facts, ensemble, is_reported):
            yield Finding(WARNING, "misrouting", name, what, "wrong-specialist", name)
    router = facts.router
    limit = UNROUTABLE_CLEARS if ("misrouting", _ROUTER) in reported else UNROUTABLE_SHARE
    if router.requests >= ensemble.escalation.min_requests and router.unroutable / router.requests > limit:
        what = f"{format_percent(router.unroutable / router.requests)} of requests fit no specialist"
        yield Finding(WARNING, "misrouting", _ROUTER, what, "wrong-specialist")


def _below_floor(view: wire.SpecialistView, reported: Container[FindingKey]) -> Iterator[Finding]:
    """Yield a finding for a low pass rate while the specialist serves; a demotion is a separate finding."""
    breaker = view.breaker
    is_measured = breaker.HasField("pass_rate") and breaker.HasField("floor")
    if not is_measured or breaker.samples < breaker.min_samples or is_breaker_open(breaker):
        return
    rate, floor = format_percents(breaker.pass_rate, breaker.floor)
    passed = f"{rate} of {breaker.samples:,} verified answers pass"
    is_below = breaker.pass_rate < breaker.floor
    if is_below and breaker.floor_learned:
        good = round(breaker.pass_rate * breaker.samples)
        is_below = Floor(breaker.floor, is_learned=True).is_breached(Counts(good, breaker.samples - good))
    if is_below:
        what = f"{passed}, the {'learned ' if breaker.floor_learned else ''}floor is {floor}"
        yield Finding(CRITICAL, "correctness", view.name, what, "bad-refresh", view.name)
    elif ("correctness", view.name) in reported and breaker.pass_rate < min(breaker.floor + CLEAR_OF_FLOOR, 1.0):
        what = f"its pass rate was below the floor of {floor} and is barely above it: {passed}"
        yield Finding(WARNING, "correctness", view.name, what, "bad-refresh", view.name)


def _demoted(breaker: wire.BreakerInfo, fallback: Fallback) -> Finding:
    rate = f" ({format_percent(breaker.pass_rate)} pass)" if breaker.HasField("pass_rate") else ""
    cause = f"its lane collapsed ({breaker.collapse})" if breaker.collapse else f"too many of its answers fail{rate}"
    what = f"{cause}, so it gets only shadow traffic; {fallback.what}"
    severity, name = WARNING if fallback.name else CRITICAL, breaker.specialist
    return Finding(severity, "breaker_open", name, what, "bad-refresh", name, breaker.since_unix_ms)


def _held(breaker: wire.BreakerInfo, fallback: Fallback) -> Finding:
    ending, name = f"; {fallback.what}" if breaker.hold == "open" else "", breaker.specialist
    severity = NOTE if breaker.hold == "closed" or fallback.name else CRITICAL
    what = f"{shorten(breaker.hold_by)} holds its breaker {breaker.hold} ({shorten(breaker.hold_why)}){ending}"
    return Finding(severity, "breaker_held", name, what, "", name, breaker.since_unix_ms)


def _second_opinions(name: str, overview: wire.Overview, is_reported: bool) -> str:
    """Describe how often only the shadow's answer passed at a low routing confidence; "" if that is not significant."""
    rows = [row for row in overview.shadow_rows if row.primary == name and row.why == "low_confidence"]
    verified = sum(row.verified for row in rows)
    alone, other = sum(row.only_primary_passed for row in rows), sum(row.only_shadow_passed for row in rows)
    ahead = other - alone
    least = ONE_SIDED_CLEARS if is_reported else ONE_SIDED
    if verified < LEAST_VERIFIED or ahead < least * verified or ahead**2 <= TWO_SIGMA * (alone + other):
        return ""
    best = max(rows, key=lambda row: (row.only_shadow_passed, row.shadow))
    return (
        f"of {verified:,} answers with a shadow in the last hour, {other:,} passed only in the shadow (most of them "
        f"from {best.shadow}) and {alone:,} only in the primary,"
    )


def _low_confidence(name: str, facts: OverviewFacts, ensemble: Ensemble, is_reported: bool) -> str:
    traffic = facts.traffic.get(name, SpecialistTraffic())
    if traffic.confidence is None or traffic.decisions < ensemble.escalation.min_requests:
        return ""
    if traffic.confidence >= (CONFIDENCE_CLEARS if is_reported else LOW_CONFIDENCE):
        return ""
    return f"the classifier's decisions for it have a mean confidence of only {format_percent(traffic.confidence)}"


def _detect_operations(overview: wire.Overview) -> Iterator[Finding]:
    now_ms = overview.at_unix_ms
    if overview.store_trouble:
        what = f"does not answer ({shorten(overview.store_trouble)}): requests are served, but nothing can be changed"
        yield Finding(WARNING, "store_down", "store", what)
    if overview.specialists and not any(is_serving(each) or is_last_resort(each) for each in overview.specialists):
        yield Finding(CRITICAL, "nobody_serves", _ROUTER, "no specialist serves, so all requests are refused")
    for view in overview.specialists:
        yield from _replica_findings(view, find_fallback(view, overview.specialists))
        yield from (_restarted(each.info, view.name) for each in view.replicas if has_restarted(each.info, now_ms))
    for knob in overview.knobs:
        if knob.set_by not in ("", _SET_BY_CONFIGURATION, SET_BY_ESCALATION):
            why = f" ({shorten(knob.why)})" if knob.why else ""
            what = f"set to {knob.value:g} by {shorten(knob.set_by)}{why} instead of the configured {knob.configured:g}"
            yield Finding(NOTE, "knob_set", knob.name, what, since_ms=knob.since_unix_ms)


def _restarted(info: wire.ReplicaInfo, specialist: str) -> Finding:
    times = f" ({info.restarts:,} restarts in all)" if info.restarts > 1 else ""
    what, at = f"restarted: {shorten(info.last_restart_reason, 120)}{times}", info.last_restart_unix_ms
    severity = NOTE if is_restart_planned(info) else WARNING
    return Finding(severity, "replica_restarted", info.name, what, "restarts", specialist, at)


def _replica_findings(view: wire.SpecialistView, fallback: Fallback) -> Iterator[Finding]:
    infos = [each.info for each in view.replicas]
    if not any(map(is_replica_up, infos)):
        state = "drained" if all(info.status in _DRAINING for info in infos) else "down"
        outage = f"all of its {len(infos)} replicas are {state}" if len(infos) > 1 else f"its only replica is {state}"
        what = f"{outage if infos else 'it has no replica'}; {fallback.what}"
        severity = WARNING if fallback.name else CRITICAL
        yield Finding(severity, "no_replica", view.name, what, "capacity", view.name)
        return
    for info in infos:
        if info.status in _DRAINING:
            how = "drained by an operator" if info.status == "drained_by_operator" else "draining"
            yield Finding(NOTE, "draining", info.name, f"{how}: it gets no new requests", specialist=view.name)
        elif info.status == "hung":
            what = "sends no reports; other replicas answer"
            yield Finding(WARNING, "replica_hung", info.name, what, "capacity", view.name)
        elif not is_replica_up(info):
            what = "fails" if info.status == "serving" else "is unreachable"
            yield Finding(WARNING, "replica_lost", info.name, f"{what}; other replicas answer", "capacity", view.name)
