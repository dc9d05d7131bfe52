"""Who answers in the place of a specialist whose answers are not to be trusted now. One step, never a chain."""

from collections.abc import Iterator
from dataclasses import dataclass

from octet.config.ensemble import Ensemble
from router.between.standing import Standing
from router.decide.choice import fallback_of
from router.decide.decision import Decision
from router.reception.ask import Ask


@dataclass(frozen=True, slots=True)
class Lead:
    """Who is asked first; empty: nobody."""

    specialist: str
    passed_over: tuple[str, ...] = ()
    """Of everybody who does not stand in: why."""


def lead_of(ask: Ask, decision: Decision, ensemble: Ensemble, standing: Standing) -> Lead:
    """The decision's primary where it serves; else its configured fallback; else the second choice. A caller who forces
    specialists gets those or nobody."""
    if standing.of(decision.primary).serves:
        return Lead(decision.primary)
    passed_over: list[str] = []
    for name in dict.fromkeys(_stand_ins(ask, decision, ensemble)):
        objection = _objection(name, ask, standing)
        if not objection:
            return Lead(name, tuple(passed_over))
        passed_over.append(f"{name} cannot stand in: {objection}")
    return Lead("", tuple(passed_over))


def _stand_ins(ask: Ask, decision: Decision, ensemble: Ensemble) -> Iterator[str]:
    fallback = "" if ask.force else fallback_of(decision.primary, ask, ensemble)
    yield from (name for name in (fallback, decision.second_choice) if name and name != decision.primary)


def _objection(name: str, ask: Ask, standing: Standing) -> str:
    """Empty where there is none."""
    stand_in = standing.of(name)
    if not stand_in.serves:
        return stand_in.because or stand_in.correctness
    missing = [adapter for adapter in ask.adapters if adapter not in stand_in.known]
    return f"it has no adapter {missing[0]!r}, which the caller named" if missing else ""
