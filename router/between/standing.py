"""How things stand at one moment: breakers, lanes, knobs and cordons. Frozen; a change is a new one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from admission.knobs import UNSPECIFIED
from octet.config.ensemble import Ensemble, IntentConfig, SpecialistConfig


@dataclass(frozen=True, slots=True)
class Knobs:
    """Both, as they are for one intent and one specialist."""

    threshold: float
    floor: int
    by: str = ""
    """Who turned one of them last: empty for the configuration, `escalation` or `operator`. For callers: no names."""
    floor_by: str = ""
    """Who turned the floor."""
    is_escalated: bool = False
    """Load is to be taken off the specialist: what it is not likely to be right for goes to second choices. Never
    because of a threshold that an operator has set: that is about shadows alone."""


@dataclass(frozen=True, slots=True)
class LaneStanding:
    """One lane as requests meet it."""

    number: int
    lane_id: str = ""
    """What its history is kept under: the same on every router that shares the store. Empty until it is known what the
    replicas run."""
    adapters: tuple[tuple[str, str], ...] = ()
    """What callers call each, and what replicas call it; in the order they are applied."""
    revision: str = ""
    """Of the replicas that may answer; empty: any."""
    fresh: bool = False
    """It has too little history to be trusted."""
    unfit: frozenset[str] = frozenset()
    """Names of replicas that are not what the lane is: another model, or another content under an adapter's name."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.adapters)

    @property
    def load_names(self) -> tuple[str, ...]:
        return tuple(load_name for _, load_name in self.adapters)


@dataclass(frozen=True, slots=True)
class SpecialistStanding:
    name: str
    lane: LaneStanding
    """The one that serves, or would."""
    correctness: str = "closed"
    """closed, shadow_only, recovering, held_open, held_closed."""
    serves: bool = True
    because: str = ""
    """Why it does not, for callers."""
    away: str = ""
    """Why none of its replicas could answer though some can be reached, for callers; empty where one could, or none
    can be reached."""
    candidate: LaneStanding | None = None
    known: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Every adapter that a caller may name here, and what replicas call it. Replicas may have more."""

    def load_name(self, name: str) -> str:
        return self.known.get(name, name)


@dataclass(frozen=True, slots=True)
class Standing:
    specialists: Mapping[str, SpecialistStanding]
    base_knobs: Mapping[str, Knobs]
    """By intent, as configured."""
    turned_knobs: Mapping[tuple[str, str], Knobs] = field(default_factory=lambda: MappingProxyType({}))
    """By intent and specialist, where they are not as configured."""
    cordoned: frozenset[str] = frozenset()
    """Names of replicas that are sent nothing new."""

    @classmethod
    def initial(cls, ensemble: Ensemble) -> "Standing":
        """What the configuration alone says."""
        return cls({each.name: configured(each) for each in ensemble.specialists}, configured_knobs(ensemble.intents))

    def of(self, specialist: str) -> SpecialistStanding:
        """Raises KeyError."""
        return self.specialists[specialist]

    def knobs(self, intent: str, specialist: str) -> Knobs:
        intent = intent or UNSPECIFIED
        turned = self.turned_knobs.get((intent, specialist))
        return turned or self.base_knobs.get(intent) or _knobs_of(IntentConfig(intent))

    def may_answer(self, replica: str, revision: str, specialist: str) -> bool:
        """Whether a replica of this model revision may be sent new requests of the specialist's lane that serves. A
        replica that has not said which revision it runs may."""
        lane = self.of(specialist).lane
        is_shut = replica in self.cordoned or replica in lane.unfit
        return not is_shut and (not lane.revision or not revision or revision == lane.revision)


def configured(specialist: SpecialistConfig) -> SpecialistStanding:
    """Before anything is known but the configuration: replicas load its adapters under their own names."""
    adapters = tuple((name, name) for name in specialist.use_adapters)
    return SpecialistStanding(
        specialist.name, LaneStanding(0, adapters=adapters), known={name: name for name in specialist.adapters}
    )


def configured_knobs(intents: Iterable[IntentConfig]) -> dict[str, Knobs]:
    knobs = {UNSPECIFIED: _knobs_of(IntentConfig(UNSPECIFIED))}
    return {**knobs, **{intent.name: _knobs_of(intent) for intent in intents}}


def _knobs_of(intent: IntentConfig) -> Knobs:
    return Knobs(intent.shadow_threshold, intent.priority_floor)
