"""What is wrong with replicas and the store, and what operators have ordered. Pure."""

from collections.abc import Iterator

from octet.v1 import overview_pb2 as wire
from router.view.facts import Facts
from router.view.finding import CRITICAL, NOTE, WARNING, Finding, short
from router.view.load_findings import ESCALATION
from router.view.stand_ins import StandIn, answers, is_up, stand_in_of

_CONFIGURATION = "configuration"
_DRAINS = ("draining", "drained_by_operator")


def house_findings(facts: Facts) -> Iterator[Finding]:
    overview = facts.overview
    if overview.store_trouble:
        what = f"it does not answer ({short(overview.store_trouble)}): all serves as it stood, nothing can be changed"
        yield Finding(WARNING, "store_down", "store", what)
    if overview.specialists and not any(map(answers, overview.specialists)):
        yield Finding(CRITICAL, "nobody_serves", "router", "no specialist serves, callers are refused")
    for view in overview.specialists:
        yield from _replicas(view, stand_in_of(view, overview.specialists))
    for knob in overview.knobs:
        if knob.set_by not in ("", _CONFIGURATION, ESCALATION):
            why = f" ({short(knob.why)})" if knob.why else ""
            what = f"set to {knob.value:g} by {short(knob.set_by)}{why}, {knob.configured:g} as configured"
            yield Finding(NOTE, "knob_set", knob.name, what, since_ms=knob.since_unix_ms)


def _replicas(view: wire.SpecialistView, stand_in: StandIn) -> Iterator[Finding]:
    infos = [each.info for each in view.replicas]
    if not any(map(is_up, infos)):
        severity, what = WARNING if stand_in.name else CRITICAL, f"{_nobody(infos)}; {stand_in.what}"
        yield Finding(severity, "no_replica", view.name, what, "capacity", view.name)
        return
    for info in infos:
        if info.status in _DRAINS:
            by = "drained by an operator" if info.status == "drained_by_operator" else "draining"
            yield Finding(NOTE, "draining", info.name, f"{by}: it is sent nothing new", specialist=view.name)
        elif info.status == "hung":
            what = "it does not report: others answer meanwhile"
            yield Finding(WARNING, "replica_hung", info.name, what, "capacity", view.name)
        elif not is_up(info):
            what = "it fails" if info.status == "serving" else "it cannot be reached"
            yield Finding(WARNING, "replica_lost", info.name, f"{what}: others answer meanwhile", "capacity", view.name)


def _nobody(infos: list[wire.ReplicaInfo]) -> str:
    if not infos:
        return "it has no replica"
    what = "drained" if all(info.status in _DRAINS for info in infos) else "out"
    return f"its only replica is {what}" if len(infos) == 1 else f"all of its {len(infos)} replicas are {what}"
