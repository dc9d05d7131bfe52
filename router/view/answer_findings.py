"""What is wrong with the answers, or with who gives them. Pure."""

from collections.abc import Container, Iterator

from octet.v1 import overview_pb2 as wire
from router.view.facts import Facts, Rules
from router.view.finding import CRITICAL, NOTE, WARNING, Finding, Key, beside, percent, short
from router.view.stand_ins import StandIn, is_open, stand_in_of
from router.view.traffic import Minute

CLEAR_OF_FLOOR = 0.01
"""A rate this far above the floor is above it."""
LEAST_VERIFIED = 20
ONE_SIDED = 0.1
"""Of the verified answers: by so much more often the shadow passed alone than the primary did."""
ONE_SIDED_KEEPS = 0.05
TWO_SIGMA = 4.0
LOW_CONFIDENCE, SURE_CONFIDENCE = 0.4, 0.45
"""Of the classifier's decisions for one specialist, on average."""
NOBODYS, NOBODYS_KEEPS = 0.2, 0.1
"""Of all requests: those that nobody should answer."""
_SECOND_OPINION = "low_confidence"
_ROUTER = "router"


def answer_findings(facts: Facts, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    everybody = facts.overview.specialists
    for view in everybody:
        yield from _below_floor(view, told)
        if view.breaker.hold:
            yield _held(view.breaker, stand_in_of(view, everybody))
        elif is_open(view.breaker):
            yield _demoted(view.breaker, stand_in_of(view, everybody))
        yield from _fresh(view)
        yield from _misrouted(view.name, facts, rules, told)
    yield from _nobodys(facts, rules, told)


def _below_floor(view: wire.SpecialistView, told: Container[Key]) -> Iterator[Finding]:
    """While it serves: once it is demoted, that is what is told. One that has been below is watched until it is well
    above."""
    breaker = view.breaker
    if not (breaker.HasField("pass_rate") and breaker.HasField("floor")) or breaker.samples < breaker.min_samples:
        return
    if is_open(breaker):
        return
    rate, floor = beside(breaker.pass_rate, breaker.floor)
    judged = f"{rate} of {breaker.samples:,} judged answers are right"
    if breaker.pass_rate < breaker.floor:
        what = f"{judged}, the floor is {floor}"
        yield Finding(CRITICAL, "correctness", view.name, what, "bad-refresh", view.name)
    elif ("correctness", view.name) in told and breaker.pass_rate < min(breaker.floor + CLEAR_OF_FLOOR, 1.0):
        what = f"its answers were below the floor of {floor}, and are hardly above it: {judged}; it is watched"
        yield Finding(WARNING, "correctness", view.name, what, "bad-refresh", view.name)


def _demoted(breaker: wire.BreakerInfo, stand_in: StandIn) -> Finding:
    """By its own breaker. What an operator has ordered is told as that."""
    rate = f" ({percent(breaker.pass_rate)} right)" if breaker.HasField("pass_rate") else ""
    what = f"its answers were wrong too often{rate}, it only shadows; {stand_in.what}"
    severity = WARNING if stand_in.name else CRITICAL
    name = breaker.specialist
    return Finding(severity, "breaker_open", name, what, "bad-refresh", name, breaker.since_unix_ms)


def _held(breaker: wire.BreakerInfo, stand_in: StandIn) -> Finding:
    ending = f"; {stand_in.what}" if breaker.hold == "open" else ""
    severity = NOTE if breaker.hold == "closed" or stand_in.name else CRITICAL
    what = f"its breaker is held {breaker.hold} by {short(breaker.hold_by)} ({short(breaker.hold_why)}){ending}"
    name = breaker.specialist
    return Finding(severity, "breaker_held", name, what, "", name, breaker.since_unix_ms)


def _fresh(view: wire.SpecialistView) -> Iterator[Finding]:
    if view.fresh:
        lane = next((each for each in view.lanes if each.status == "serving"), wire.LaneInfo())
        called = short(lane.adapter) or "the bare model"
        what = f"its lane is fresh ({called}, {lane.samples:,} answers judged): more of it is looked at"
        yield Finding(NOTE, "fresh_lane", view.name, what, "", view.name, lane.since_unix_ms)


def _misrouted(name: str, facts: Facts, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    """Second opinions are right where the first is not; or nobody was sure to begin with."""
    has_been_told = ("misrouting", name) in told
    what = _second_opinions(name, facts.overview, has_been_told) or _unsure(name, facts, rules, has_been_told)
    if what:
        yield Finding(WARNING, "misrouting", name, what, "wrong-specialist", name)


def _second_opinions(name: str, overview: wire.Overview, has_been_told: bool) -> str:
    rows = [row for row in overview.shadow_rows if row.primary == name and row.why == _SECOND_OPINION]
    verified = sum(row.verified for row in rows)
    alone, other = sum(row.only_primary_passed for row in rows), sum(row.only_shadow_passed for row in rows)
    ahead = other - alone
    least = ONE_SIDED_KEEPS if has_been_told else ONE_SIDED
    if verified < LEAST_VERIFIED or ahead < least * verified or ahead**2 <= TWO_SIGMA * (alone + other):
        return ""
    best = max(rows, key=lambda row: (row.only_shadow_passed, row.shadow))
    return (
        f"of the last hour's {verified:,} answers with a second opinion {other:,} were right only in the second "
        f"(most from {best.shadow}), {alone:,} only in the first,"
    )


def _unsure(name: str, facts: Facts, rules: Rules, has_been_told: bool) -> str:
    minute = facts.minutes.get(name, Minute())
    if minute.confidence is None or minute.decisions < rules.min_requests:
        return ""
    if minute.confidence >= (SURE_CONFIDENCE if has_been_told else LOW_CONFIDENCE):
        return ""
    return f"the classifier is only {percent(minute.confidence)} sure of what it sends there"


def _nobodys(facts: Facts, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    door = facts.door
    if door.requests < rules.min_requests:
        return
    share = door.nobodys / door.requests
    if share > (NOBODYS_KEEPS if ("misrouting", _ROUTER) in told else NOBODYS):
        what = f"{percent(share)} of requests are for nobody here, as it sees them"
        yield Finding(WARNING, "misrouting", _ROUTER, what, "wrong-specialist")
