"""The two knobs of an intent, and who turns them: the configuration, escalation, or an operator, whose word is last."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from admission.escalation import Ladder, Rules, knobs_at
from admission.kept import kept
from octet.config.ensemble import IntentConfig

Knob = Literal["shadow_threshold", "priority_floor"]
UNSPECIFIED = "unspecified"
"""The intent of requests that declare none."""
ESCALATION = "escalation"
_KNOBS: tuple[Knob, ...] = get_args(Knob)
_SHAPE = "INTENT.KNOB or INTENT/SPECIALIST.KNOB with KNOB " + " or ".join(_KNOBS)
_MOST_FLOOR = 9


class KnobError(ValueError):
    """Says which field is wrong and what would be right."""

    def __init__(self, field: str, limit: str, value: str) -> None:
        super().__init__(f"{field} must be {limit}, got {value}")
        self.field = field
        self.limit = limit
        self.value = value


@dataclass(frozen=True, slots=True)
class KnobName:
    intent: str
    specialist: str | None
    """None: whoever answers."""
    knob: Knob

    def __str__(self) -> str:
        return f"{self.intent}/{self.specialist}.{self.knob}" if self.specialist else f"{self.intent}.{self.knob}"

    @classmethod
    def parse(cls, text: str) -> "KnobName":
        """Intents and specialists may have dots of their own. Raises KnobError."""
        whose, _, last = text.rpartition(".")
        knob = next((each for each in _KNOBS if each == last), None)
        intent, slash, specialist = whose.partition("/")
        if knob is None or not intent or bool(slash) != bool(specialist) or "/" in specialist:
            raise KnobError("name", _SHAPE, repr(text))
        return cls(intent, specialist or None, knob)


@dataclass(frozen=True, slots=True)
class SetKnob:
    """By an operator, until released."""

    value: float
    by: str
    why: str
    since: float

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "SetKnob":
        """Raises ValueError for what is none."""
        return kept(cls, body, "a knob that was set")


@dataclass(frozen=True, slots=True)
class Configured:
    threshold: float
    floor: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Why a knob is as it is."""

    by: str = ""
    """Empty for the configuration, `escalation`, or whoever set it."""
    why: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Knobs:
    """Both, as they are for one intent and one specialist."""

    threshold: float
    floor: int
    threshold_turn: Turn = Turn()
    floor_turn: Turn = Turn()
    is_escalated: bool = False
    """Escalation has raised the threshold, whatever an operator has set in its place: load is to be taken off."""

    @property
    def by(self) -> str:
        """Who turned one of them last."""
        return max(self.threshold_turn, self.floor_turn, key=lambda turn: turn.since).by


def configured_of(intent: IntentConfig) -> Configured:
    return Configured(intent.shadow_threshold, intent.priority_floor)


def parse(text: str, intents: Collection[str], specialists: Collection[str]) -> KnobName:
    """A knob that there is. Raises KnobError."""
    name = KnobName.parse(text)
    if name.intent != UNSPECIFIED and name.intent not in intents:
        raise KnobError("name", f"a knob of an intent ({_listed({*intents, UNSPECIFIED})})", repr(text))
    if name.specialist is not None and name.specialist not in specialists:
        raise KnobError("name", f"a knob of a specialist ({_listed(specialists)})", repr(text))
    return name


def checked(name: KnobName, value: float) -> float:
    """The value, where this knob can have it. Raises KnobError."""
    if name.knob == "shadow_threshold":
        if not 0 <= value <= 1:
            raise KnobError("value", "in [0, 1] for shadow_threshold", f"{value:g}")
    elif not (0 <= value <= _MOST_FLOOR and value == int(value)):
        raise KnobError("value", f"a whole number from 0 to {_MOST_FLOOR} for priority_floor", f"{value:g}")
    return value


def effective(
    intent: str,
    specialist: str,
    configured: Configured,
    operator: Mapping[KnobName, SetKnob],
    ladder: Ladder,
    rules: Rules,
) -> Knobs:
    """What an operator set for this intent and specialist, else for this intent, whether it is more or less than all
    else; else what is configured, or what the specialist's escalation made of it."""
    threshold, floor = knobs_at(ladder.level, configured.threshold, configured.floor, rules)
    is_escalated = threshold > configured.threshold
    threshold_turn = _escalated(is_escalated, ladder)
    floor_turn = _escalated(floor > configured.floor, ladder)
    if turned := _set_by_operator(intent, specialist, "shadow_threshold", operator):
        threshold, threshold_turn = turned.value, Turn(turned.by, turned.why, turned.since)
    if turned := _set_by_operator(intent, specialist, "priority_floor", operator):
        floor, floor_turn = int(turned.value), Turn(turned.by, turned.why, turned.since)
    return Knobs(threshold, floor, threshold_turn, floor_turn, is_escalated)


def _set_by_operator(intent: str, specialist: str, knob: Knob, operator: Mapping[KnobName, SetKnob]) -> SetKnob | None:
    of_both = operator.get(KnobName(intent, specialist, knob))
    return of_both if of_both is not None else operator.get(KnobName(intent, None, knob))


def _escalated(is_raised: bool, ladder: Ladder) -> Turn:
    return Turn(ESCALATION, f"level {ladder.level}", ladder.since) if is_raised else Turn()


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
