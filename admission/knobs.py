"""The two knobs of an intent, shadow threshold and priority floor: configured, escalated or set by an operator."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from admission.budgets import restore_record
from admission.escalation import EscalationLadder, KnobBase
from octet.config.ensemble import EscalationConfig, IntentConfig

Knob = Literal["shadow_threshold", "priority_floor"]
UNSPECIFIED_INTENT = "unspecified"  # the intent of requests that declare none
ESCALATION = "escalation"
KNOBS: tuple[Knob, ...] = get_args(Knob)
_SHAPE = "INTENT.KNOB or INTENT/SPECIALIST.KNOB, where KNOB is " + " or ".join(KNOBS)
_MAX_FLOOR = 9


class KnobError(ValueError):
    """An invalid knob name or value. The message names the field and its limit."""

    def __init__(self, field: str, limit: str, value: str) -> None:
        super().__init__(f"{field} must be {limit}, got {value}")
        self.field = field
        self.limit = limit
        self.value = value


@dataclass(frozen=True, slots=True)
class KnobName:
    intent: str
    specialist: str | None  # None: every specialist
    knob: Knob

    def __str__(self) -> str:
        return f"{self.intent}/{self.specialist}.{self.knob}" if self.specialist else f"{self.intent}.{self.knob}"

    @classmethod
    def parse(cls, text: str) -> "KnobName":
        """Parse a knob's name. Intents and specialists may contain dots. Raises KnobError for an invalid name."""
        owner, _, last = text.rpartition(".")
        knob = next((each for each in KNOBS if each == last), None)
        intent, slash, specialist = owner.partition("/")
        if knob is None or not intent or bool(slash) != bool(specialist) or "/" in specialist:
            raise KnobError("name", _SHAPE, repr(text))
        return cls(intent, specialist or None, knob)


@dataclass(frozen=True, slots=True)
class OperatorKnob:
    """A value set by an operator, valid until released."""

    value: float
    by: str
    why: str
    since: float

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> "OperatorKnob":
        """Raises ValueError for an invalid body."""
        return restore_record(cls, body, "an operator knob")


@dataclass(frozen=True, slots=True)
class KnobSource:
    by: str = ""  # empty for the configuration, otherwise `escalation` or the operator's name
    why: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class EffectiveKnobs:
    """The knobs in force for one intent and one specialist, and their sources."""

    threshold: float
    floor: int
    threshold_turn: KnobSource = KnobSource()
    floor_turn: KnobSource = KnobSource()
    is_escalated: bool = False
    """Whether escalation has raised the threshold (the specialist needs relief), even if an operator overrides it."""

    @property
    def by(self) -> str:
        """The source of the knob that was set more recently."""
        return max(self.threshold_turn, self.floor_turn, key=lambda turn: turn.since).by

    def setting(self, knob: Knob) -> tuple[float, KnobSource]:
        return (self.threshold, self.threshold_turn) if knob == "shadow_threshold" else (self.floor, self.floor_turn)


def check_knob_value(name: KnobName, value: float) -> float:
    """Return the value. Raises KnobError if it is out of range."""
    if name.knob == "shadow_threshold":
        if not 0 <= value <= 1:
            raise KnobError("value", "in [0, 1] for shadow_threshold", f"{value:g}")
    elif not (0 <= value <= _MAX_FLOOR and value == int(value)):
        raise KnobError("value", f"a whole number from 0 to {_MAX_FLOOR} for priority_floor", f"{value:g}")
    return value


def effective_knobs(
    intent: IntentConfig,
    specialist: str,
    operator: Mapping[KnobName, OperatorKnob],
    ladder: EscalationLadder,
    rules: EscalationConfig,
) -> EffectiveKnobs:
    """Return the knobs in force. An operator's setting for this intent and specialist comes first, then a setting for
    the intent, then the configured value, raised by the escalation of the intent at the specialist."""
    base = knob_base(intent, specialist, operator)
    threshold, floor = base.raised(ladder.steps, rules)
    is_escalated = threshold > intent.shadow_threshold
    threshold_turn = _escalated(is_escalated, ladder)
    floor_turn = _escalated(floor > intent.priority_floor, ladder)
    if turned := _set_by_operator(intent.name, specialist, "shadow_threshold", operator):
        threshold_turn = KnobSource(turned.by, turned.why, turned.since)
    if turned := _set_by_operator(intent.name, specialist, "priority_floor", operator):
        floor_turn = KnobSource(turned.by, turned.why, turned.since)
    return EffectiveKnobs(*base.in_force(ladder.steps, rules), threshold_turn, floor_turn, is_escalated)


def knob_base(intent: IntentConfig, specialist: str, operator: Mapping[KnobName, OperatorKnob]) -> KnobBase:
    """Return the values from which escalation raises the knobs, and those by which an operator overrides it."""
    threshold = _set_by_operator(intent.name, specialist, "shadow_threshold", operator)
    floor = _set_by_operator(intent.name, specialist, "priority_floor", operator)
    return KnobBase(
        intent.shadow_threshold,
        intent.priority_floor,
        None if threshold is None else threshold.value,
        None if floor is None else int(floor.value),
    )


def _set_by_operator(
    intent: str, specialist: str, knob: Knob, operator: Mapping[KnobName, OperatorKnob]
) -> OperatorKnob | None:
    of_both = operator.get(KnobName(intent, specialist, knob))
    return of_both if of_both is not None else operator.get(KnobName(intent, None, knob))


def _escalated(is_raised: bool, ladder: EscalationLadder) -> KnobSource:
    return KnobSource(ESCALATION, f"level {ladder.level}", ladder.since) if is_raised else KnobSource()
