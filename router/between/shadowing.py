"""Whether a copy is made of a request, and for whom."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from octet.config.ensemble import Ensemble
from router.between.standing import Knobs, LaneStanding, SpecialistStanding, Standing
from router.between.way import Way, way_of
from router.decide.choice import fallback_of
from router.decide.decision import Decision
from router.reception.ask import Ask

Why = Literal["low_confidence", "fresh_lane", "demoted"]
Dice = Callable[[], float]
"""In [0, 1)."""


@dataclass(frozen=True, slots=True)
class ShadowOrder:
    way: Way
    why: Why


@dataclass(frozen=True, slots=True)
class Case:
    """A request whose first answerer is settled."""

    ask: Ask
    decision: Decision
    ensemble: Ensemble
    standing: Standing
    lead: str
    knobs: Knobs
    moved: bool
    """To the second choice, to take load off the primary."""


def shadow_of(case: Case, dice: Dice) -> ShadowOrder | None:
    """The first reason that applies. A way that counts for no lane is none: a caller who chose the adapters gets no
    shadow."""
    if case.moved:
        return None
    for rate, way, why in _reasons(case):
        if way.lane_id and (rate >= 1 or dice() < rate):
            return ShadowOrder(way, why)
    return None


def _reasons(case: Case) -> Iterator[tuple[float, Way, Why]]:
    rates = case.ensemble.shadow
    primary, lead = case.standing.of(case.decision.primary), case.standing.of(case.lead)
    if primary is not lead:
        if primary.candidate is not None:
            yield rates.fresh_rate, _way(case, primary, primary.candidate), "fresh_lane"
        yield rates.demoted_rate, _way(case, primary, primary.lane), "demoted"
    if lead.candidate is not None:
        yield rates.fresh_rate, _way(case, lead, lead.candidate), "fresh_lane"
    other = _other(case)
    if other is not None:
        if lead.lane.fresh:
            yield rates.fresh_rate, other, "fresh_lane"
        if primary is lead and _is_unsure(case):
            yield 1.0, other, "low_confidence"


def _is_unsure(case: Case) -> bool:
    confidence = case.decision.confidence
    return confidence is not None and confidence < case.knobs.threshold


def _other(case: Case) -> Way | None:
    """Whose answer is worth comparing with. A caller who forces specialists shows the request to nobody else."""
    ask, standing = case.ask, case.standing
    fallback = "" if ask.force else fallback_of(case.lead, ask, case.ensemble)
    for name in (case.decision.second_choice, fallback):
        if name and name not in (case.lead, case.decision.primary) and standing.of(name).serves:
            return _way(case, standing.of(name), standing.of(name).lane)
    return None


def _way(case: Case, specialist: SpecialistStanding, lane: LaneStanding) -> Way:
    return way_of(case.standing, specialist.name, lane, case.ask)
