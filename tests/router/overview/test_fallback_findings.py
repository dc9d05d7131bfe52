"""Findings name the fallback that answers instead, if that fallback serves."""

from dataclasses import replace
from typing import Any

import pytest

from octet.v1 import overview_pb2 as wire
from router.observe.overview.findings import CRITICAL, FindingTracker, detect_findings, worst_first
from router.observe.overview.headline import headline
from tests.router.overview.harness import START_MS
from tests.router.overview.test_findings import FINE, RULES, facts_of


def held_open(view: wire.SpecialistView) -> None:
    view.breaker.hold, view.breaker.hold_by = "open", "ann"


def only_shadows(view: wire.SpecialistView) -> None:
    view.breaker.state = "shadow_only"


def recovers(view: wire.SpecialistView) -> None:
    view.breaker.state = "recovering"


def drained(view: wire.SpecialistView) -> None:
    for each in view.replicas:
        each.info.status = "drained_by_operator"


def ejected(view: wire.SpecialistView) -> None:
    for each in view.replicas:
        each.info.health_breaker = "open"


OUT = (held_open, only_shadows, recovers, drained, ejected)


@pytest.mark.parametrize("first", OUT)
@pytest.mark.parametrize("second", OUT)
def test_a_fallback_that_is_down_answers_for_no_specialist(first: Any, second: Any) -> None:
    """If `debug` and `stl` are each other's fallback and both are down, no finding says that one answers for the
    other."""
    facts = facts_of("debug", "stl", "algo")
    debug, stl, algo = facts.overview.specialists
    debug.breaker.fallback, stl.breaker.fallback = "stl", "debug"
    first(debug)
    (found,) = detect_findings(facts, RULES)
    assert found.severity < CRITICAL and "; stl answers instead" in found.what and "refused" not in found.what
    second(stl)
    found, other = sorted(detect_findings(facts, RULES), key=lambda each: each.subject)
    assert (found.severity, found.subject, other.severity, other.subject) == (CRITICAL, "debug", CRITICAL, "stl")
    refused = "is not serving either: requests are refused unless they have another second choice"
    assert found.what.endswith(f"; its fallback stl {refused}")
    second(algo)
    reported = detect_findings(facts, RULES)
    assert all(each.severity == CRITICAL and "unless" not in each.what for each in reported)
    assert ("nobody_serves", "router") in {each.key for each in reported}
    overview = facts.overview
    assert headline(overview) == "No specialist serves."
    overview.troubles.extend(worst_first(FindingTracker().step(reported, 0.0, START_MS)))
    assert headline(overview).startswith("router: no specialist serves, so all requests are refused since 22:13 UTC")


def test_unserved_requests_are_not_reported_as_lack_of_capacity() -> None:
    minutes = {"debug": replace(FINE, answered=0, refused=100, unserved=100), "stl": FINE}
    (found,) = detect_findings(replace(facts_of(), traffic=minutes), RULES)
    assert (found.kind, found.subject, found.severity, found.runbook) == ("unserved", "debug", CRITICAL, "bad-refresh")
    assert found.what.startswith("100 % of requests refused because it is not serving")
    few = {"debug": replace(FINE, answered=88, refused=12, unserved=4), "stl": FINE}
    (found,) = detect_findings(replace(facts_of(), traffic=few), RULES)
    assert found.kind == "refusing" and found.what.startswith("8 %")
