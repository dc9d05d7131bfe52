"""Findings distinguish the five incidents of docs/runbook.md, and claim no more than the facts show."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.config.ensemble import SloConfig
from octet.v1 import overview_pb2 as wire
from router.dispatch.replicas.replica import DRAINED_REASON
from router.observe.overview.findings import (
    CRITICAL,
    MOST_FINDINGS,
    NOTE,
    RECENT_RESTART_MS,
    WARNING,
    FindingTracker,
    OverviewFacts,
    detect_findings,
    format_percents,
    worst_first,
)
from router.observe.overview.headline import headline
from router.observe.overview.traffic import CacheReuse, RouterTraffic, SpecialistTraffic
from tests.router.overview.harness import START_MS, ensemble_of

RULES = ensemble_of("debug")
NAMES = ("debug", "stl")
FINE = SpecialistTraffic(requests=100, answered=100, decisions=100, confidence=0.9)
MEASURED = {"refusing", "unserved", "failing", "burning", "correctness", "cache_drift", "misrouting", "estimator"}


def facts_of(*names: str) -> OverviewFacts:
    """Return the facts of healthy specialists, for which there is no finding."""
    overview = wire.Overview(at_unix_ms=START_MS)
    for name in names or NAMES:
        view = overview.specialists.add(name=name)
        view.breaker.CopyFrom(
            wire.BreakerInfo(specialist=name, state="closed", samples=100, min_samples=20, pass_rate=0.97, floor=0.9)
        )
        view.breaker.fallback = next((other for other in names or NAMES if other != name), "")
        for index in range(2):
            info = wire.ReplicaInfo(name=f"{name}-{index}", status="serving", health_breaker="closed")
            view.replicas.add(info=info)
        objective = view.slo.objectives.add(
            name="admission_to_first_token_p95", target=0.5, share=0.95, current=0.2, met=True
        )
        for seconds in (300, 3600):
            objective.burns.add(window_seconds=seconds, samples=200, rate=0.5)
    return OverviewFacts(
        overview,
        dict.fromkeys(names or NAMES, FINE),
        RouterTraffic(200),
        {name: CacheReuse(50_000, 30_000) for name in names or NAMES},
        {name: CacheReuse(500_000, 300_000) for name in names or NAMES},
    )


def refusing(facts: OverviewFacts) -> OverviewFacts:
    return replace(facts, traffic={**facts.traffic, "debug": replace(FINE, answered=88, refused=12)})


def late(facts: OverviewFacts) -> OverviewFacts:
    objective = facts.overview.specialists[0].slo.objectives[0]
    objective.current, objective.met = 1.9, False
    for burn in objective.burns:
        burn.rate = 12.0
    return facts


def barely_late(facts: OverviewFacts) -> OverviewFacts:
    objective = facts.overview.specialists[0].slo.objectives[0]
    objective.current, objective.met = 0.51, False
    return facts


def restarted(facts: OverviewFacts) -> OverviewFacts:
    info = facts.overview.specialists[0].replicas[1].info
    info.restarts, info.last_restart_reason = 3, "killed by SIGKILL"
    info.last_restart_unix_ms = START_MS - RECENT_RESTART_MS + 1
    return facts


def wrong(facts: OverviewFacts) -> OverviewFacts:
    facts.overview.specialists[0].breaker.pass_rate = 0.71
    return facts


def demoted(facts: OverviewFacts) -> OverviewFacts:
    breaker = facts.overview.specialists[0].breaker
    breaker.pass_rate, breaker.state, breaker.since_unix_ms = 0.71, "shadow_only", START_MS - 60_000
    return facts


def drifting(facts: OverviewFacts) -> OverviewFacts:
    return replace(facts, recent={**facts.recent, "debug": CacheReuse(50_000, 2_000, 312)})


def misrouted(facts: OverviewFacts) -> OverviewFacts:
    facts.overview.shadow_rows.add(
        primary="debug",
        shadow="stl",
        why="low_confidence",
        compared=60,
        verified=60,
        only_shadow_passed=20,
        only_primary_passed=2,
    )
    return facts


def unsure(facts: OverviewFacts) -> OverviewFacts:
    return replace(facts, traffic={**facts.traffic, "debug": replace(FINE, confidence=0.25)})


INCIDENTS: list[tuple[str, list[Callable[[OverviewFacts], OverviewFacts]], set[str]]] = [
    ("capacity", [refusing], {"refusing"}),
    ("capacity", [late], {"burning", "missed_objective"}),
    ("capacity", [refusing, late], {"refusing", "burning", "missed_objective"}),
    ("capacity", [barely_late], {"missed_objective"}),
    ("bad-refresh", [wrong], {"correctness"}),
    ("bad-refresh", [demoted], {"breaker_open"}),
    ("both", [refusing, wrong], {"refusing", "correctness"}),
    ("both", [late, demoted], {"burning", "missed_objective", "breaker_open"}),
    ("restarts", [restarted], {"replica_restarted"}),
    ("cache-drift", [drifting], {"cache_drift"}),
    ("wrong-specialist", [misrouted], {"misrouting"}),
    ("wrong-specialist", [unsure], {"misrouting"}),
]


def test_a_healthy_ensemble_has_no_findings() -> None:
    assert detect_findings(facts_of(), RULES) == []


@pytest.mark.parametrize(("runbook", "causes", "kinds"), INCIDENTS)
def test_the_five_incidents_are_distinguished(runbook: str, causes: Any, kinds: set[str]) -> None:
    facts = facts_of()
    for cause in causes:
        facts = cause(facts)
    found = detect_findings(facts, RULES)
    assert {each.kind for each in found} == kinds
    assert {each.runbook for each in found} == {runbook}
    assert {each.specialist for each in found} == {"debug"}, "no other specialist may have a finding"


def test_an_incident_affects_only_its_specialist() -> None:
    """If two specialists have different incidents, each finding names its own specialist and runbook."""
    facts = refusing(facts_of())
    facts.overview.specialists[1].breaker.pass_rate = 0.5
    assert {(each.subject, each.runbook) for each in detect_findings(facts, RULES)} == {
        ("debug", "capacity"),
        ("stl", "bad-refresh"),
    }


@given(st.sampled_from(INCIDENTS), st.integers(0, 19))
def test_too_few_samples_cause_no_finding(incident: Any, few: int) -> None:
    facts = facts_of()
    for cause in incident[1]:
        facts = cause(facts)
    for view in facts.overview.specialists:
        view.breaker.samples = few
        for burn in view.slo.objectives[0].burns[:1]:
            burn.samples = few
    for row in facts.overview.shadow_rows:
        row.verified = few
    minutes = {name: replace(each, requests=few, decisions=few) for name, each in facts.traffic.items()}
    facts = replace(
        facts, traffic=minutes, recent={"debug": CacheReuse(100 * few, 0)}, router=RouterTraffic(few, few, few, few)
    )
    assert not {each.kind for each in detect_findings(facts, RULES)} & MEASURED


@given(
    st.integers(0, 200),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 50),
    st.floats(0, 50),
    st.sampled_from(("closed", "shadow_only", "recovering")),
    st.sampled_from(("", "open", "closed")),
    st.sets(st.tuples(st.sampled_from(sorted(MEASURED)), st.sampled_from(NAMES))),
)
def test_every_finding_is_a_sentence_about_its_subject(
    refused: int, rate: float, floor: float, short: float, long: float, state: str, hold: str, reported: Any
) -> None:
    facts = facts_of()
    minutes = {"debug": SpecialistTraffic(requests=200, refused=refused, failed=200 - refused), "stl": FINE}
    view = facts.overview.specialists[0]
    view.breaker.pass_rate, view.breaker.floor = rate, floor
    view.breaker.state, view.breaker.hold = state, hold
    view.slo.objectives[0].burns[0].rate, view.slo.objectives[0].burns[1].rate = short, long
    found = detect_findings(replace(facts, traffic=minutes), RULES, reported)
    assert len({each.key for each in found}) == len(found), "there must be one finding per kind and subject"
    for each in found:
        assert each.severity in (NOTE, WARNING, CRITICAL) and each.subject in ("debug", "debug-0", "debug-1")
        assert "\n" not in each.what and 0 < len(each.what) < 250
    kinds = {each.kind: each for each in found}
    assert ("burning" in kinds) == (
        min(short, long) >= RULES.slo.alert_burn * (0.5 if ("burning", "debug") in reported else 1)
    )
    assert ("breaker_open" in kinds) == (not hold and state != "closed")
    assert ("breaker_held" in kinds) == bool(hold)
    if "correctness" in kinds:
        assert rate < floor + 0.01 and hold != "open"
    assert detect_findings(replace(facts, traffic=minutes), RULES, reported) == found, (
        "equal facts must give equal findings"
    )


def test_thresholds_are_taken_from_the_configuration() -> None:
    escalation = RULES.escalation
    assert (RULES.slo.alert_burn, escalation.refused, escalation.min_requests) == (6.0, 0.05, 20)
    facts = facts_of()
    for burn in facts.overview.specialists[0].slo.objectives[0].burns:
        burn.rate = 2.5
    assert not detect_findings(facts, RULES)
    assert [each.kind for each in detect_findings(facts, replace(RULES, slo=SloConfig(alert_burn=2.0)))] == ["burning"]


@pytest.mark.parametrize(
    ("share", "rate", "reported", "burns"),
    [
        (0.5, 2.0, (), True),
        (0.5, 1.8, (), True),
        (0.5, 1.7, (), False),
        (0.5, 1.0, [("burning", "debug")], True),
        (0.5, 0.8, [("burning", "debug")], False),
        (0.95, 5.9, (), False),
        (0.95, 6.0, (), True),
        (1.0, 5.9, (), False),
        (1.0, 1000.0, (), True),
    ],
)
def test_an_objective_for_half_of_the_requests_burns_when_nearly_all_fail(
    share: float, rate: float, reported: Any, burns: bool
) -> None:
    """If half of the requests may miss the target, the burn rate is at most 2, even if all of them miss it."""
    facts = facts_of("debug")
    objective = facts.overview.specialists[0].slo.objectives[0]
    objective.name, objective.share = "ttft_p50", share
    for burn in objective.burns:
        burn.rate = rate
    assert [each.kind for each in detect_findings(facts, RULES, reported)] == (["burning"] if burns else [])


STATES: list[tuple[str, Any, str, str, int]] = [
    ("a replica hangs", {"status": "hung"}, "replica_hung", "debug-0", WARNING),
    ("a replica is away", {"status": "connecting"}, "replica_lost", "debug-0", WARNING),
    ("a replica fails", {"health_breaker": "open"}, "replica_lost", "debug-0", WARNING),
    ("a replica drains", {"status": "draining"}, "draining", "debug-0", NOTE),
    ("an operator drains it", {"status": "drained_by_operator"}, "draining", "debug-0", NOTE),
]


@pytest.mark.parametrize(("about", "changes", "kind", "subject", "severity"), STATES)
def test_every_state_of_an_unavailable_replica_is_a_finding(
    about: str, changes: dict[str, str], kind: str, subject: str, severity: int
) -> None:
    facts = facts_of()
    facts.overview.specialists[0].replicas[0].info.MergeFrom(wire.ReplicaInfo(**changes))  # type: ignore[arg-type]
    (found,) = detect_findings(facts, RULES)
    assert (found.kind, found.subject, found.severity) == (kind, subject, severity)
    facts.overview.specialists[0].replicas[1].info.MergeFrom(wire.ReplicaInfo(**changes))  # type: ignore[arg-type]
    (found,) = detect_findings(facts, RULES)
    assert (found.kind, found.subject, found.severity) == ("no_replica", "debug", WARNING), (
        "there must be one finding for all replicas"
    )
    assert found.what.endswith("; stl answers instead")
    facts.overview.specialists[0].breaker.fallback = ""
    (found,) = detect_findings(facts, RULES)
    assert found.severity == CRITICAL and "it has no fallback: requests are refused" in found.what
    del facts.overview.specialists[0].replicas[1]
    (found,) = detect_findings(facts, RULES)
    assert found.what.startswith("its only replica ")


def test_a_last_resort_is_not_said_to_refuse() -> None:
    facts = facts_of()
    for view in facts.overview.specialists:
        view.breaker.state, view.breaker.fallback, view.breaker.is_last_resort = "shadow_only", "", True
    found = detect_findings(facts, RULES)
    assert {each.kind for each in found} == {"breaker_open"}, "some answer, so it is not true that all are refused"
    assert all("it still answers what nothing else can" in each.what for each in found)


def test_a_suspicious_lane_is_a_finding_until_its_breaker_opens() -> None:
    facts = facts_of()
    facts.overview.specialists[0].breaker.suspicion = "7 of the last 20 judged answers are degenerate"
    (found,) = detect_findings(facts, RULES)
    assert (found.kind, found.subject, found.severity) == ("suspicious", "debug", WARNING)
    facts.overview.specialists[0].breaker.state = "shadow_only"
    facts.overview.specialists[0].breaker.collapse = "17 of the last 20 judged answers are degenerate"
    (found,) = detect_findings(facts, RULES)
    assert found.kind == "breaker_open" and "collapsed (17 of the last 20 judged answers" in found.what


def test_findings_about_operators_and_the_store() -> None:
    facts = facts_of()
    overview = facts.overview
    overview.store_trouble = "no route\nto host"
    overview.specialists[0].breaker.MergeFrom(
        wire.BreakerInfo(hold="open", hold_by="ann", hold_why="bad\nrefresh " + "x" * 2000, since_unix_ms=START_MS)
    )
    overview.specialists[1].fresh = True
    overview.specialists[1].lanes.add(status="serving", adapter="lora", samples=7, since_unix_ms=START_MS)
    overview.knobs.add(name="review.priority_floor", value=5, set_by="ann", since_unix_ms=START_MS)
    overview.knobs.add(name="review.shadow_threshold", value=0.5, set_by="configuration")
    for knob in ("shadow_threshold", "priority_floor"):
        overview.knobs.add(name=f"review/stl.{knob}", set_by="escalation", since_unix_ms=START_MS + len(knob))
    found = {each.kind: each for each in detect_findings(facts, RULES)}
    assert {kind: (each.severity, each.subject) for kind, each in found.items()} == {
        "store_down": (WARNING, "store"),
        "breaker_held": (NOTE, "debug"),
        "fresh_lane": (NOTE, "stl"),
        "knob_set": (NOTE, "review.priority_floor"),
        "escalated": (WARNING, "stl"),
    }
    assert found["escalated"].since_ms == START_MS + len("priority_floor") and "review" in found["escalated"].what
    assert all("\n" not in each.what and len(each.what) < 300 for each in found.values())
    overview.specialists[0].breaker.fallback = ""
    (held,) = [each for each in detect_findings(facts, RULES) if each.kind == "breaker_held"]
    assert held.severity == CRITICAL and "requests are refused" in held.what


def test_a_demotion_without_a_fallback_is_critical() -> None:
    facts = demoted(facts_of())
    (found,) = detect_findings(facts, RULES)
    assert (found.severity, found.since_ms) == (WARNING, START_MS - 60_000)
    facts.overview.specialists[0].breaker.fallback = ""
    (found,) = detect_findings(facts, RULES)
    assert found.severity == CRITICAL


@given(st.floats(0.5, 1), st.floats(0.5, 1))
def test_a_rate_and_its_floor_are_formatted_differently(rate: float, floor: float) -> None:
    reported = [float(each.removesuffix(" %")) for each in format_percents(rate, floor)]
    if abs(rate - floor) > 0.00011:
        assert (reported[0] < reported[1]) == (rate < floor) and reported[0] != reported[1]
    assert abs(reported[1] / 100 - floor) <= 0.0005001


def test_a_recovered_pass_rate_is_a_warning() -> None:
    facts, reported = facts_of(), {("correctness", "debug")}
    breaker = facts.overview.specialists[0].breaker
    breaker.pass_rate = 0.896
    (found,) = detect_findings(facts, RULES, reported)
    assert found.severity == CRITICAL
    assert found.what == "89.6 % of 100 verified answers pass, the floor is 90.0 %"
    breaker.pass_rate = 0.906
    (found,) = detect_findings(facts, RULES, reported)
    assert found.severity == WARNING
    assert found.what == (
        "its pass rate was below the floor of 90.0 % and is barely above it: 90.6 % of 100 verified answers pass"
    )
    assert not detect_findings(facts, RULES), "the rate was never reported as below the floor"


def test_findings_about_forecasts_failures_and_unrouted_requests() -> None:
    facts = facts_of()
    error = facts.overview.specialists[0].replicas[0].load.estimate_error
    error.total_p90, error.num_requests = 2.5, 49
    assert not detect_findings(facts, RULES)
    error.num_requests = 50
    minutes = {"debug": FINE, "stl": replace(FINE, answered=90, failed=10)}
    found = detect_findings(replace(facts, traffic=minutes, router=RouterTraffic(100, 60, 30, 30)), RULES)
    assert {each.key for each in found} == {
        ("estimator", "debug-0"),
        ("failing", "stl"),
        ("refusing", "router"),
        ("misrouting", "router"),
    }


def test_only_shadows_for_low_confidence_show_misrouting() -> None:
    for why in ("fresh_lane", "demoted"):
        facts = misrouted(facts_of())
        facts.overview.shadow_rows[0].why = why
        assert not detect_findings(facts, RULES)
    facts = misrouted(facts_of())
    facts.overview.shadow_rows[0].only_primary_passed = 18
    assert not detect_findings(facts, RULES), "primary and shadow are right equally often"


@given(
    st.lists(st.tuples(st.sampled_from((NOTE, WARNING, CRITICAL)), st.text("ab", min_size=1, max_size=3)), max_size=99)
)
def test_the_worst_findings_come_first(given_: list[tuple[Any, str]]) -> None:
    troubles = [wire.Trouble(severity=severity, subject=subject) for severity, subject in given_]
    found = worst_first(troubles)
    severities = [each.severity for each in found]
    assert severities == sorted((each.severity for each in troubles), reverse=True)[:MOST_FINDINGS]
    assert found == worst_first(reversed(troubles))


BLEMISHES: dict[str, Callable[[wire.SpecialistView], None]] = {
    "missed": lambda view: view.slo.objectives[0].MergeFrom(wire.Objective(current=0.6)),
    "restart": lambda view: view.replicas[1].info.MergeFrom(
        wire.ReplicaInfo(restarts=1, last_restart_reason="out of memory", last_restart_unix_ms=START_MS - 60_000)
    ),
    "held open": lambda view: view.breaker.MergeFrom(wire.BreakerInfo(hold="open")),
    "demoted": lambda view: view.breaker.MergeFrom(wire.BreakerInfo(state="shadow_only")),
    "dead": lambda view: view.replicas[0].info.MergeFrom(wire.ReplicaInfo(status="connecting")),
    "hung": lambda view: view.replicas[0].info.MergeFrom(wire.ReplicaInfo(status="hung")),
    "failing": lambda view: view.replicas[0].info.MergeFrom(wire.ReplicaInfo(health_breaker="open")),
    "drained": lambda view: view.replicas[0].info.MergeFrom(wire.ReplicaInfo(status="drained_by_operator")),
}


@given(st.sets(st.tuples(st.sampled_from(sorted(BLEMISHES)), st.integers(0, 1))), st.floats(0, 120))
def test_all_well_stands_above_no_problem(given_: set[tuple[str, int]], seconds: float) -> None:
    """Neither at once nor later: some findings are reported only after they have lasted."""
    facts, tracker = facts_of(), FindingTracker()
    for name, index in given_:
        view = facts.overview.specialists[index]
        BLEMISHES[name](view)
        view.slo.objectives[0].met = view.slo.objectives[0].current <= view.slo.objectives[0].target
    for now in (0.0, seconds):
        del facts.overview.troubles[:]
        found = detect_findings(facts, RULES, tracker.reported)
        facts.overview.troubles.extend(worst_first(tracker.step(found, now, START_MS + round(1000 * now))))
        assert headline(facts.overview).startswith("All well") == (not given_)


def test_a_restart_is_reported_for_a_while_with_its_reason() -> None:
    facts = restarted(facts_of())
    (finding,) = detect_findings(facts, RULES)
    assert finding.what == "restarted: killed by SIGKILL (3 restarts in all)" and finding.severity == WARNING
    facts.overview.at_unix_ms += 1
    assert not detect_findings(facts, RULES) and headline(facts.overview).startswith("All well")


def test_a_restart_after_a_drain_is_only_a_note() -> None:
    facts = restarted(facts_of())
    facts.overview.specialists[0].replicas[1].info.MergeFrom(
        wire.ReplicaInfo(restarts=1, last_restart_reason=DRAINED_REASON)
    )
    (finding,) = detect_findings(facts, RULES)
    assert (finding.severity, finding.what) == (NOTE, f"restarted: {DRAINED_REASON}")
    assert headline(facts.overview).startswith("All well")


def test_the_headline_summarises_the_findings() -> None:
    overview = facts_of().overview
    assert headline(overview) == "All well: 2 specialists serve."
    overview.troubles.add(severity=NOTE, text="debug: its lane is fresh")
    assert headline(overview) == "All well: 2 specialists serve."
    overview.specialists[0].breaker.hold = "open"
    assert headline(overview) == "1 of 2 specialists serve, but the breaker of debug is held open."
    overview.troubles.insert(0, wire.Trouble(severity=CRITICAL, text="debug: 12 % refused since 14:02 UTC"))
    assert headline(overview) == "debug: 12 % refused since 14:02 UTC"
    overview.troubles.insert(1, wire.Trouble(severity=WARNING, text="stl: other"))
    assert headline(overview) == "debug: 12 % refused since 14:02 UTC (and 1 more)"
    assert headline(facts_of("debug").overview) == "All well: 1 specialist serves."
