"""What is wrong with how much can be done, and how fast. Pure."""

from collections.abc import Container, Iterator

from octet.v1 import overview_pb2 as wire
from router.view.cache_reuse import Reuse
from router.view.facts import Facts, Rules
from router.view.finding import CRITICAL, WARNING, Finding, Key, percent
from router.view.traffic import Minute

ESCALATION = "escalation"
LEAST_USUAL_REUSE = 0.1
"""Where less of the prompts is found as a rule, finding nothing means nothing."""
DRIFT, RECOVERED = 0.5, 0.75
"""Shares of the usual reuse: below the first it has drifted, from the second on it has not."""
LEAST_RECENT_TOKENS = 2_000
LEAST_USUAL_TOKENS = 10_000
LEAST_FORECASTS = 50
ESTIMATOR, ESTIMATOR_WELL = 2.0, 1.5
"""Of the error of one forecast in ten, as a share of what came. Single totals are hard to foretell: up to 0.9 is usual
under load."""
_BURN_KEEPS = 0.5
_NEARLY_ALL = 0.9
"""Of the samples: where so many break a promise, it is broken, whatever it allows for."""
_ROUTER = "router"


def load_findings(facts: Facts, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    for view in facts.overview.specialists:
        minute = facts.minutes.get(view.name, Minute())
        yield from _refusing(view.name, minute, rules, told)
        yield from _unserved(view.name, minute, rules, told)
        yield from _failing(view.name, minute, rules, told)
        yield from _burning(view, rules, told)
        recent, usual = facts.recent.get(view.name, Reuse()), facts.usual.get(view.name, Reuse())
        yield from _drifting(view.name, recent, usual, told)
        yield from _misjudging(view, told)
    yield from _escalated(facts.overview)
    yield from _full(facts, rules, told)


def _is_much(part: int, whole: int, key: Key, rules: Rules, told: Container[Key]) -> bool:
    """Too much to begin with; and not none, once it has been told."""
    if whole < rules.min_requests:
        return False
    share = part / whole
    return share >= rules.calm and share > 0 if key in told else share > rules.refused


def _refusing(name: str, minute: Minute, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    full = minute.refused - minute.unserved
    if _is_much(full, minute.requests, ("refusing", name), rules, told):
        what = f"{percent(full / minute.requests)} of requests refused for want of capacity"
        yield Finding(CRITICAL, "refusing", name, what, "capacity", name)


def _unserved(name: str, minute: Minute, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    if _is_much(minute.unserved, minute.requests, ("unserved", name), rules, told):
        share = percent(minute.unserved / minute.requests)
        what = f"{share} of requests refused, because it does not serve and nobody stood in"
        yield Finding(CRITICAL, "unserved", name, what, "bad-refresh", name)


def _failing(name: str, minute: Minute, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    if _is_much(minute.failed, minute.requests, ("failing", name), rules, told):
        yield Finding(
            CRITICAL, "failing", name, f"{percent(minute.failed / minute.requests)} of requests failed", "", name
        )


def _full(facts: Facts, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    door = facts.door
    if _is_much(door.no_room, door.requests, ("refusing", _ROUTER), rules, told):
        share = percent(door.no_room / door.requests)
        yield Finding(
            CRITICAL, "refusing", _ROUTER, f"{share} of requests found no room in the router itself", "capacity"
        )


def _burning(view: wire.SpecialistView, rules: Rules, told: Container[Key]) -> Iterator[Finding]:
    """Of latencies: what is wrong with the answers themselves is told otherwise."""
    keeps = _BURN_KEEPS if ("burning", view.name) in told else 1.0
    found = [
        (_burn(each, rules), each)
        for each in view.slo.objectives
        if each.name != "correctness" and _burn(each, rules) >= _alert_burn(each, rules) * keeps
    ]
    if found:
        rate, worst = max(found, key=lambda pair: (pair[0], pair[1].name))
        more = f", and {len(found) - 1} more of its promises" if len(found) > 1 else ""
        what = f"{_objective(worst)}: the promise is used up {rate:.3g} times too fast{more}"
        yield Finding(CRITICAL, "burning", view.name, what, "capacity", view.name)


def _alert_burn(objective: wire.Objective, rules: Rules) -> float:
    """No promise burns faster than with everybody failed: one that may fail half of them is broken at that already."""
    budget = 1 - objective.share
    return min(rules.alert_burn, _NEARLY_ALL / budget) if budget > 0 else rules.alert_burn


def _burn(objective: wire.Objective, rules: Rules) -> float:
    """The least over all windows; 0 where one of them has too few samples to say anything."""
    burns = objective.burns
    if not burns or any(burn.samples < rules.min_requests or not burn.HasField("rate") for burn in burns):
        return 0.0
    return float(min(burn.rate for burn in burns))


def _objective(objective: wire.Objective) -> str:
    name = objective.name.replace("_", " ").replace("ttft", "time to first token").replace("itl", "time between tokens")
    now = f" at {objective.current:.3g} s" if objective.HasField("current") else ""
    return f"{name}{now}, promised {objective.target:.3g} s"


def _drifting(name: str, recent: Reuse, usual: Reuse, told: Container[Key]) -> Iterator[Finding]:
    if recent.prompt_tokens < LEAST_RECENT_TOKENS or usual.prompt_tokens < LEAST_USUAL_TOKENS:
        return
    now, before = recent.share or 0.0, usual.share or 0.0
    limit = before * (RECOVERED if ("cache_drift", name) in told else DRIFT)
    if before >= LEAST_USUAL_REUSE and now < limit:
        evicted = f"; {recent.evicted_blocks:,} blocks evicted meanwhile" if recent.evicted_blocks else ""
        what = f"{percent(now)} of prompt tokens found in the cache, {percent(before)} in the hour before{evicted}"
        yield Finding(WARNING, "cache_drift", name, what, "cache-drift", name)


def _misjudging(view: wire.SpecialistView, told: Container[Key]) -> Iterator[Finding]:
    for replica in view.replicas:
        error = replica.load.estimate_error
        if error.num_requests < LEAST_FORECASTS or not error.HasField("total_p90"):
            continue
        name = replica.info.name
        if error.total_p90 > (ESTIMATOR_WELL if ("estimator", name) in told else ESTIMATOR):
            what = f"one forecast in ten is wrong by {percent(error.total_p90)} or more: admission goes by them"
            yield Finding(WARNING, "estimator", name, what, "capacity", view.name)


def _escalated(overview: wire.Overview) -> Iterator[Finding]:
    """One for each specialist: it turns the knobs of many intents at once."""
    since: dict[str, list[int]] = {}
    for knob in overview.knobs:
        specialist = knob.name.rpartition(".")[0].partition("/")[2]
        if knob.set_by == ESCALATION and specialist:
            since.setdefault(specialist, []).append(knob.since_unix_ms)
    for specialist, moments in since.items():
        knobs = "1 knob" if len(moments) == 1 else f"{len(moments)} knobs"
        what = f"escalation has turned {knobs} to take load off it"
        yield Finding(WARNING, "escalated", specialist, what, "capacity", specialist, min(moments))
