"""Who answers in the place of whom, as things are now. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from octet.v1 import overview_pb2 as wire


@dataclass(frozen=True, slots=True)
class StandIn:
    """What becomes of those who ask for somebody who does not answer now."""

    name: str
    """Empty: nobody answers in its place."""
    what: str
    """In words."""


def stand_in_of(view: wire.SpecialistView, everybody: Iterable[wire.SpecialistView]) -> StandIn:
    """One step, never a chain: a fallback that does not answer hands on to nobody. A request may have a second choice
    of its own, where anybody else answers."""
    others = {each.name: each for each in everybody if each.name != view.name}
    fallback = view.breaker.fallback
    if fallback in others and answers(others[fallback]):
        return StandIn(fallback, f"{fallback} stands in")
    nobody = f"{fallback}, which should stand in, does not answer either" if fallback else "nobody stands in"
    but = " unless they have another second choice" if any(map(answers, others.values())) else ""
    return StandIn("", f"{nobody}: callers are refused{but}")


def answers(view: wire.SpecialistView) -> bool:
    return not is_open(view.breaker) and any(is_up(each.info) for each in view.replicas)


def is_open(breaker: wire.BreakerInfo) -> bool:
    """It only shadows."""
    if breaker.hold:
        return breaker.hold == "open"
    return breaker.state in ("shadow_only", "recovering")


def is_up(info: wire.ReplicaInfo) -> bool:
    return info.status == "serving" and info.health_breaker != "open"
