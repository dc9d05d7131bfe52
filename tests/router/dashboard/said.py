"""What the router itself says of a scene: its sentences are made where it makes them, never written down here."""

from collections.abc import Mapping

from admission import correctness, escalation
from admission.window import Counts
from octet.config.default import default_ensemble
from octet.v1 import overview_pb2 as wire
from router.view.facts import Facts, rules_of
from router.view.traffic import Minute
from router.view.trouble_memory import TroubleMemory
from router.view.troubles import findings, headline, worst_first

_ENSEMBLE = default_ensemble()
FLOOR = 0.9
BREAKER_RULES = correctness.rules_of(_ENSEMBLE.correctness, FLOOR)
LADDER_RULES = escalation.rules_of(_ENSEMBLE.escalation)


def add_troubles(overview: wire.Overview, minutes: Mapping[str, Minute], seen_seconds: float) -> None:
    """All that it finds wrong; what nobody else dates was first seen so long ago."""
    facts, memory, now_ms = Facts(overview, minutes), TroubleMemory(), overview.at_unix_ms
    found = findings(facts, rules_of(_ENSEMBLE))
    memory.step(found, 0.0, now_ms - round(1000 * seen_seconds))
    overview.troubles.extend(worst_first(memory.step(found, seen_seconds, now_ms)))
    overview.headline = headline(overview)


def outlook(standing: correctness.Standing, counts: Counts, now_ms: int) -> str:
    """Of a breaker."""
    return correctness.outlook(standing, counts, now_ms / 1000, BREAKER_RULES)


def escalated(counts: Counts) -> escalation.Move:
    """The first step up, for so many refused."""
    now = 2 * LADDER_RULES.sustain + 60
    ladder = escalation.Ladder(hot_since=now - LADDER_RULES.sustain)
    _, move = escalation.step(ladder, counts, now, LADDER_RULES, 9)
    assert move is not None
    return move
