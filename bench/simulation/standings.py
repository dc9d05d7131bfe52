"""Who served, and how far escalation had gone, at every moment of a run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from admission.knobs import UNSPECIFIED
from bench.simulation.court import Court
from octet.config.ensemble import Ensemble, EscalationConfig, IntentConfig
from router.control.control import Control


@dataclass(frozen=True, slots=True)
class Moment:
    """From a time on, until the next."""

    at: float
    serves: frozenset[str]
    levels: tuple[tuple[str, int], ...]

    def level(self, specialist: str) -> int:
        return dict(self.levels)[specialist]


@dataclass(frozen=True, slots=True)
class Turned:
    """What a level makes of the two knobs, said once for all laws, and not as the product says it."""

    rules: EscalationConfig
    threshold: float
    """As configured."""

    def at(self, level: int) -> tuple[float, int]:
        """Threshold and floor."""
        thresholds = [self.threshold]
        while thresholds[-1] < self.rules.max_threshold - 1e-9:
            thresholds.append(min(thresholds[-1] + self.rules.threshold_step, self.rules.max_threshold))
        over = max(0, level - len(thresholds) + 1)
        return thresholds[min(level, len(thresholds) - 1)], min(over * self.rules.floor_step, self.rules.max_floor)

    @property
    def top(self) -> int:
        rules = self.rules
        steps = ceil(round((rules.max_threshold - self.threshold) / rules.threshold_step, 6))
        return max(0, steps) + ceil(rules.max_floor / rules.floor_step)


def turned_of(ensemble: Ensemble) -> Turned:
    """For requests without an intent, which all are."""
    base = next((intent for intent in ensemble.intents if intent.name == UNSPECIFIED), IntentConfig(UNSPECIFIED))
    return Turned(ensemble.escalation, base.shadow_threshold)


class Standings:
    """What requests meet, as it is published."""

    def __init__(self, control: Control, court: Court, now: Callable[[], float]) -> None:
        self._control = control
        self._court = court
        self._now = now
        self._moments = [self._look()]
        watched: Any = control
        publish = control._publish

        def watched_publish(at: float | None = None) -> None:
            publish(at)
            self._note()

        watched._publish = watched_publish

    def between(self, start: float, end: float) -> list[Moment]:
        """All that were in force at some time in it."""
        return list(self._between(start, end))

    def _between(self, start: float, end: float) -> Iterator[Moment]:
        ends = [*(moment.at for moment in self._moments[1:]), float("inf")]
        for moment, until in zip(self._moments, ends, strict=True):
            if moment.at <= end and until >= start:
                yield moment

    def _look(self) -> Moment:
        standing = self._control.standing
        serves = frozenset(name for name, each in standing.specialists.items() if each.serves)
        return Moment(self._now(), serves, tuple(self._control.escalation().items()))

    def _note(self) -> None:
        found, last = self._look(), self._moments[-1]
        if (found.serves, found.levels) != (last.serves, last.levels):
            self._moments.append(found)
            self._court.note(f"serving {sorted(found.serves)}, levels {found.levels}")
