"""The demand of intents at a specialist, and how they share its capacity."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

NO_SECOND_CHOICE = -1
MAX_PRIORITY = 9


class DemandClass(NamedTuple):
    """What decides whether escalation can withhold a request from its specialist."""

    priority: int
    confidence: int = NO_SECOND_CHOICE
    """The confidence of its routing in percent, rounded down; NO_SECOND_CHOICE if it cannot move to another one."""

    @classmethod
    def of(cls, priority: int, confidence: float | None) -> "DemandClass":
        """`confidence` is None if the request cannot move to a second choice."""
        return cls(priority, NO_SECOND_CHOICE if confidence is None else int(round(confidence * 100, 9)))

    @property
    def is_valid(self) -> bool:
        return 0 <= self.priority <= MAX_PRIORITY and NO_SECOND_CHOICE <= self.confidence <= 100


LOWEST_CLASS = DemandClass(0)


@dataclass(frozen=True, slots=True)
class DemandCounts:
    accepted: int = 0
    refused: int = 0  # for lack of capacity
    withheld: int = 0  # kept away by escalation: answered by the second choice, or refused below the raised floor

    def __add__(self, other: "DemandCounts") -> "DemandCounts":
        return DemandCounts(
            self.accepted + other.accepted, self.refused + other.refused, self.withheld + other.withheld
        )

    @property
    def asked(self) -> int:
        return self.accepted + self.refused


@dataclass(frozen=True, slots=True)
class IntentDemand:
    """The requests of one intent to one specialist within a window."""

    classes: Mapping[DemandClass, DemandCounts]
    usual: float = 0.0  # how many requests usually come within such a window

    @property
    def total(self) -> DemandCounts:
        return sum(self.classes.values(), DemandCounts())


NO_DEMAND = IntentDemand({})


def fair_shares(demand: Mapping[str, float], usual: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Divide the capacity among intents, none of which gets more than its demand. First each intent gets its usual
    demand; what is left is divided equally among the intents that want more. If even the usual demand exceeds the
    capacity, each intent gets the same part of it."""
    first = {name: min(wanted, usual.get(name, 0.0)) for name, wanted in demand.items()}
    taken = sum(first.values())
    if taken > capacity:
        return {name: part * capacity / taken for name, part in first.items()}
    more = _divide_equally({name: wanted - first[name] for name, wanted in demand.items()}, capacity - taken)
    return {name: part + more[name] for name, part in first.items()}


def _divide_equally(wanted: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Give each name what it wants, or an equal part of the capacity if that is less (max-min fairness)."""
    parts: dict[str, float] = {}
    for name in sorted(wanted, key=lambda name: (wanted[name], name)):
        parts[name] = min(wanted[name], capacity / (len(wanted) - len(parts)))
        capacity -= parts[name]
    return parts
