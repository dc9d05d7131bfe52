"""What is wrong with the answers, or with who gives them. Pure."""

from collections.abc import Container, Iterator

from octet.v1 import overview_pb2 as wire
from router.view.facts import Facts, Rules
from router.view.finding import CRITICAL, NOTE, WARNING, Finding, Key, percent, short
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
    for view in facts.overview.specialists:
        yield from _below_floor(view, told)
        yield from _demoted(view.breaker)
        yield from _held(view.breaker)
        yield from _fresh(view)
        yield from _misrouted(view.name, facts, rules, told)
    yield from _nobodys(facts, rules, told)


def _below_floor(view: wire.SpecialistView, told: Container[Key]) -> Iterator[Finding]:
    """While it serves: once it is demoted, that is what is told."""
    breaker = view.breaker
    if not (breaker.HasField("pass_rate") and breaker.HasField("floor")) or breaker.samples < breaker.min_samples:
        return
    if is_open(breaker):
        return
    margin = CLEAR_OF_FLOOR if ("correctness", view.name) in told else 0.0
    if breaker.pass_rate < min(breaker.floor + margin, 1.0):
        what = (
            f"{percent(breaker.pass_rate)} of {breaker.samples:,} judged answers are right, "
            f"the floor is {percent(breaker.floor)}"
        )
        yield Finding(CRITICAL, "correctness", view.name, what, "bad-refresh", view.name)


def _demoted(breaker: wire.BreakerInfo) -> Iterator[Finding]:
    """By its own breaker. What an operator has ordered is told as that."""
    if breaker.hold or not is_open(breaker):
        return
    rate = f" ({percent(breaker.pass_rate)} right)" if breaker.HasField("pass_rate") else ""
    if breaker.fallback:
        what = f"its answers were wrong too often{rate}: {breaker.fallback} answers, it only shadows"
    else:
        what = f"its answers were wrong too often{rate}, and nobody stands in: callers are refused"
    severity = WARNING if breaker.fallback else CRITICAL
    name = breaker.specialist
    yield Finding(severity, "breaker_open", name, what, "bad-refresh", name, breaker.since_unix_ms)


def is_open(breaker: wire.BreakerInfo) -> bool:
    if breaker.hold:
        return breaker.hold == "open"
    return breaker.state in ("shadow_only", "recovering")


def _held(breaker: wire.BreakerInfo) -> Iterator[Finding]:
    if not breaker.hold:
        return
    refuses = breaker.hold == "open" and not breaker.fallback
    ending = ", and nobody stands in: callers are refused" if refuses else ""
    what = f"its breaker is held {breaker.hold} by {short(breaker.hold_by)} ({short(breaker.hold_why)}){ending}"
    name = breaker.specialist
    yield Finding(WARNING if refuses else NOTE, "breaker_held", name, what, "", name, breaker.since_unix_ms)


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
