"""What is played, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from bench.overload.mix import Mix, offers
from bench.overload.offer import Offer
from bench.overload.outcome import Outcome
from bench.overload.replica import Plant
from bench.overload.shapes import Source

System = Literal["octet", "queue"]
"""With admission, or with nothing but a bounded queue."""


@dataclass(frozen=True, slots=True)
class Plan:
    plant: Plant
    source: Source
    mix: Mix
    loads: tuple[float, ...]
    """Multiples of the capacity."""
    seconds: float
    """Of each load, or of the highest one."""
    seeds: Sequence[int]
    compressed: bool = False
    """Whether all loads are the same requests, and a higher one has them come in less time."""
    followed: int = 40
    """About so many refusals of a run are followed to see when they would have been let in."""

    def seconds_at(self, load: float) -> float:
        return self.seconds * max(self.loads) / load if self.compressed else self.seconds

    def window(self, load: float) -> tuple[float, float]:
        """What counts for rates: not the beginning."""
        seconds = self.seconds_at(load)
        return seconds / 6, seconds

    def offers(self, load: float, capacity: float, seed: int) -> list[Offer]:
        return offers(self.source, self.mix, self.plant.cost, self.seconds_at(load), load * capacity, seed)

    def order(self, seed: int) -> list[float]:
        """Every round has one of its own."""
        return Random(seed).sample(self.loads, len(self.loads))


class Errors(NamedTuple):
    """How far forecasts were from what came, as shares of what came."""

    step_p50: float
    step_p90: float
    total_p50: float | None
    total_p90: float | None


class Comeback(NamedTuple):
    """A refusal, and how it would have been."""

    priority: int
    told: float | None
    """Seconds after which to try again."""
    wait: float
    """After which it would have been let in, had it kept its place in line."""
    welcome: bool
    """Whether it is let in when it comes back as told, with no place in line."""


@dataclass(frozen=True, slots=True)
class Run:
    load: float
    system: System
    seed: int
    window: tuple[float, float]
    outcomes: Sequence[Outcome]
    errors: Errors | None
    comebacks: Sequence[Comeback]
    busy: float | None = None
    """Share of the time in which the replica had something to do, where that is known."""
