"""Text for the sample state, written by the router's own code."""

from collections.abc import Mapping

from admission import breakers, demand, escalation
from admission.budgets import Counts
from admission.floors import Floor
from octet.config.loader import default_ensemble
from octet.v1 import overview_pb2 as wire
from router.observe.overview.findings import (
    FindingTracker,
    OverviewFacts,
    detect_findings,
    worst_first,
)
from router.observe.overview.headline import headline
from router.observe.overview.traffic import SpecialistTraffic

_ENSEMBLE = default_ensemble()
FLOOR = 0.9
BREAKER_RULES = breakers.choose_correctness_rules(_ENSEMBLE.correctness, Floor(FLOOR))
LADDER_RULES = _ENSEMBLE.escalation


def add_troubles(overview: wire.Overview, minutes: Mapping[str, SpecialistTraffic], seen_seconds: float) -> None:
    """Add all findings to the overview. A finding without a start time of its own started `seen_seconds` ago."""
    facts, memory, now_ms = OverviewFacts(overview, minutes), FindingTracker(), overview.at_unix_ms
    found = detect_findings(facts, _ENSEMBLE)
    memory.step(found, 0.0, now_ms - round(1000 * seen_seconds))
    overview.troubles.extend(worst_first(memory.step(found, seen_seconds, now_ms)))
    overview.headline = headline(overview)


def outlook(standing: breakers.BreakerRecord, counts: Counts, now_ms: int) -> str:
    """Return the text of a breaker's outlook."""
    return breakers.describe_breaker_outlook(standing, counts, now_ms / 1000, BREAKER_RULES)


def escalated(accepted: int, refused: int) -> escalation.EscalationMove:
    """Return the first escalation step for these counts."""
    asked = demand.IntentDemand({demand.DemandClass(5, 40): demand.DemandCounts(accepted, refused)})
    view = escalation.EscalationView("codegen", {"codegen": asked}, escalation.KnobBase(0.3, 0), LADDER_RULES)
    now = 2 * LADDER_RULES.sustain + 60
    ladder = escalation.EscalationLadder(hot_since=now - LADDER_RULES.sustain)
    _, move = escalation.advance_ladder(ladder, view, now)
    assert move is not None
    return move
