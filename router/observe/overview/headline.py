"""The state of the ensemble in one line."""

from collections.abc import Iterator

from octet.v1 import overview_pb2 as wire
from router.observe.overview.findings import (
    NOTE,
    format_moment,
    has_restarted,
    is_breaker_open,
    is_replica_up,
    is_restart_planned,
    is_serving,
    missed_objectives,
    spell_objective,
)


def headline(overview: wire.Overview) -> str:
    """Return the problems in one line. "All well" needs more than no reported problem, because findings are reported
    late: every replica is up and none restarted recently without a drain, and every objective is met."""
    wrong = [each for each in overview.troubles if each.severity > NOTE]
    if wrong:
        return f"{wrong[0].text} (and {len(wrong) - 1} more)" if len(wrong) > 1 else wrong[0].text
    whole, serving = len(overview.specialists), sum(map(is_serving, overview.specialists))
    if not serving:
        return "No specialist serves."
    served = "1 specialist serves" if whole == 1 else f"{serving} of {whole} specialists serve"
    served = f"{whole} specialists serve" if serving == whole > 1 else served
    blemishes = [each for view in overview.specialists for each in _blemishes(view, overview.at_unix_ms)]
    more = f" (and {len(blemishes) - 1} more)" if len(blemishes) > 1 else ""
    return f"{served}, but {blemishes[0]}{more}." if blemishes else f"All well: {served}."


def _blemishes(view: wire.SpecialistView, now_ms: int) -> Iterator[str]:
    if is_breaker_open(view.breaker):
        yield f"the breaker of {view.name} is {'held ' if view.breaker.hold else ''}open"
    elif view.breaker.suspicion:
        yield f"{view.name} is suspicious: {view.breaker.suspicion}"
    yield from (f"{view.name} misses its target for {spell_objective(each)}" for each in missed_objectives(view))
    for info in (each.info for each in view.replicas):
        if not is_replica_up(info):
            status = "failing" if info.status == "serving" else info.status.replace("_", " ")
            yield f"{info.name} is {status}"
        elif has_restarted(info, now_ms) and not is_restart_planned(info):
            yield f"{info.name} restarted at {format_moment(info.last_restart_unix_ms, now_ms)}"
    if not view.replicas:
        yield f"{view.name} has no replica"
