"""Who should answer, before anything is tuned for it. Pure: what the request, the configuration and the rules say."""

from collections.abc import Sequence
from dataclasses import dataclass

from octet.config.ensemble import Ensemble, IntentConfig
from router.decide.decision import Source
from router.reception.ask import Ask
from router.refusals import unknown_intent, unknown_specialist
from router.rules.page import Page
from router.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Choice:
    source: Source
    decided_by: str
    """Empty where nobody decided because nobody could."""
    why: str
    primary: str = ""
    second: str = ""
    distribution: tuple[tuple[str, float], ...] = ()
    confidence: float | None = None
    classifier_digest: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What can be said without the classifier."""

    choice: Choice | None
    """None: the classifier should be asked."""
    notes: tuple[str, ...] = ()


def read(ask: Ask, ensemble: Ensemble, rules: Sequence[Rule]) -> Reading:
    """The caller's force, then the declared intent, then the first rule that matches. Raises Refusal for names that the
    ensemble does not have."""
    intent = _checked(ask, ensemble)
    if ask.force:
        return _forced(ask, intent)
    if ask.exclude and set(ask.exclude).issuperset(ensemble.names):
        return Reading(Choice("nobody", "exclude_specialists", "the caller excluded every specialist"))
    notes: list[str] = []
    if intent is not None and intent.specialist is not None:
        if intent.specialist not in ask.exclude:
            why = f"the declared intent {intent.name!r} belongs to {intent.specialist}"
            return Reading(_settled("intent", intent.name, why, intent.specialist, ask, ensemble))
        notes.append(f"intent {intent.name!r} belongs to {intent.specialist}, which the caller excluded")
    return _ruled(ask, ensemble, rules, notes)


def fallback_of(specialist: str, ask: Ask, ensemble: Ensemble) -> str:
    """Empty where there is none, or the caller will not have it."""
    fallback = ensemble.specialist(specialist).fallback
    return fallback if fallback is not None and fallback not in ask.exclude else ""


def _checked(ask: Ask, ensemble: Ensemble) -> IntentConfig | None:
    for field, names in (("force_specialists", ask.force), ("exclude_specialists", ask.exclude)):
        for name in names:
            if name not in ensemble.names:
                raise unknown_specialist(field, name, ensemble.names)
    if not ask.intent:
        return None
    intent = next((intent for intent in ensemble.intents if intent.name == ask.intent), None)
    if intent is None:
        raise unknown_intent(ask.intent, (intent.name for intent in ensemble.intents))
    return intent


def _forced(ask: Ask, intent: IntentConfig | None) -> Reading:
    """The first of the list and, where that one cannot, the second. The rest is never asked."""
    primary, second, *rest = (*ask.force, "") if len(ask.force) == 1 else ask.force
    notes = []
    if intent is not None and intent.specialist not in (None, primary):
        notes.append(f"intent {intent.name!r} belongs to {intent.specialist}; the caller's force goes first")
    if rest:
        notes.append(f"of the forced specialists only {primary} and {second} are asked")
    why = f"the caller asked for {primary}" + (f", else {second}" if second else "")
    return Reading(Choice("forced", "force_specialists", why, primary, second), tuple(notes))


def _ruled(ask: Ask, ensemble: Ensemble, rules: Sequence[Rule], notes: list[str]) -> Reading:
    page = Page(ask.text)
    for rule in rules:
        finding = rule.detect(page)
        if finding is None:
            continue
        why = f"rule {rule.name!r} matched {finding}"
        if rule.specialist not in ask.exclude:
            return Reading(_settled("rule", rule.name, why, rule.specialist, ask, ensemble), tuple(notes))
        notes.append(f"{why}; it belongs to {rule.specialist}, which the caller excluded")
    return Reading(None, tuple(notes))


def _settled(source: Source, by: str, why: str, primary: str, ask: Ask, ensemble: Ensemble) -> Choice:
    return Choice(source, by, why, primary, fallback_of(primary, ask, ensemble))
