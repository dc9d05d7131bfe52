"""From a decision to what is done about it now. Pure: Route and Generate take the same plan from the same function."""

from collections.abc import Iterable
from dataclasses import dataclass

from admission.knobs import UNSPECIFIED
from octet.config.ensemble import Ensemble
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.between.between_wire import between_to_wire
from router.between.refusals import away, below_floor, demoted
from router.between.shadowing import Case, Dice, ShadowOrder, shadow_of
from router.between.stand_in import lead_of
from router.between.standing import Knobs, Standing
from router.between.way import Way, way_of
from router.decide.decision import Decision
from router.reception.ask import Ask


@dataclass(frozen=True, slots=True)
class Plan:
    ways: tuple[Way, ...]
    """In order; empty where nobody is to answer."""
    shadow: ShadowOrder | None
    sample: bool
    """Whether the answer is judged."""
    between: wire.Between
    refusal: Refusal | None = None
    """Why nobody is to answer: to be raised by whoever would have asked."""


def plan(ask: Ask, decision: Decision, ensemble: Ensemble, standing: Standing, dice: Dice) -> Plan:
    """`decision` names a primary. An answer that may be calls of tools is neither judged nor compared: verifiers read
    text."""
    primary = standing.of(decision.primary)
    lead = lead_of(ask, decision, ensemble, standing)
    knobs = standing.knobs(ask.intent, lead.specialist or decision.primary)
    if not lead.specialist:
        refusal = demoted(primary, lead.passed_over, forced=bool(ask.force))
        return _refused(refusal, decision, standing, lead.specialist, knobs)
    if ask.priority < knobs.floor:
        refusal = below_floor(ask.intent or UNSPECIFIED, lead.specialist, knobs, ask.priority)
        return _refused(refusal, decision, standing, lead.specialist, knobs)
    second = _second(ask, decision, lead.specialist, standing)
    if reasons := _away(standing, (lead.specialist, second)):
        return _refused(away(reasons), decision, standing, lead.specialist, knobs)
    moved = bool(second) and _moves(ask, decision, lead.specialist, second, standing, knobs)
    shadow = (
        None
        if ask.may_call
        else shadow_of(Case(ask, decision, ensemble, standing, lead.specialist, knobs, moved), dice)
    )
    order = (second, lead.specialist) if moved else (lead.specialist, second)
    ways = tuple(way_of(standing, name, standing.of(name).lane, ask) for name in order if name)
    why = _why(decision, standing, lead.specialist, knobs, moved)
    between = between_to_wire(primary, ways[0].specialist, ways[0], shadow, knobs, why)
    sample = not ask.may_call and _is_sampled(ways[0], shadow, ensemble, dice)
    return Plan(ways, shadow, sample, between)


def _second(ask: Ask, decision: Decision, lead: str, standing: Standing) -> str:
    """Empty where nobody else serves, or takes a request of this priority."""
    name = decision.second_choice
    if not name or name in (lead, decision.primary) or not standing.of(name).serves:
        return ""
    return name if ask.priority >= standing.knobs(ask.intent, name).floor else ""


def _away(standing: Standing, names: Iterable[str]) -> list[str]:
    """Why nobody of these could answer; empty where somebody could."""
    reasons = [standing.of(name).away for name in names if name]
    return reasons if all(reasons) else []


def _moves(ask: Ask, decision: Decision, lead: str, second: str, standing: Standing, knobs: Knobs) -> bool:
    """Load is taken off the primary where it was not likely to be the right one. Never off a stand-in, and never onto
    somebody who is under pressure as well."""
    return (
        lead == decision.primary
        and knobs.is_escalated
        and decision.confidence is not None
        and decision.confidence < knobs.threshold
        and not standing.knobs(ask.intent, second).is_escalated
    )


def _is_sampled(first: Way, shadow: ShadowOrder | None, ensemble: Ensemble, dice: Dice) -> bool:
    """Always beside a shadow: otherwise the two could not be compared."""
    if shadow is not None or not first.lane_id:
        return shadow is not None
    rates = ensemble.correctness
    return dice() < (rates.fresh_sample_rate if first.fresh else rates.sample_rate)


def _why(decision: Decision, standing: Standing, lead: str, knobs: Knobs, moved: bool) -> str:
    primary = standing.of(decision.primary)
    if lead != primary.name:
        return f"{lead} stands in: {primary.because or primary.correctness}"
    if moved:
        unsure = f"confidence {decision.confidence:.2f} is below {knobs.threshold:.2f}"
        return f"{primary.name} is to get less (escalation): {unsure}"
    return ""


def _refused(refusal: Refusal, decision: Decision, standing: Standing, lead: str, knobs: Knobs) -> Plan:
    primary = standing.of(decision.primary)
    between = between_to_wire(primary, lead, None, None, knobs, "")
    return Plan((), None, False, between, refusal)
