"""What is played, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from bench.admission.mix import Mix, offers
from bench.admission.offer import Offer
from bench.admission.outcome import Outcome
from bench.admission.replica import Plant
from bench.admission.shapes import Source
from bench.spells import Spells

System = Literal["octet", "fcfs", "fcfs tuned", "priority"]
"""With admission, or with nothing but a bounded queue: first come, first served, as long as a replica's line may be or
as long as serves it best; or by priority."""
QUEUE = 256
"""How many may wait before a replica."""
LENGTHS = (0, 1, 2, 4, 8, 16, 32, 64, 128, QUEUE)
"""Among them is looked for the queue that serves first come, first served best."""
QUICK_LENGTHS = (8, 32, QUEUE)


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
    lengths: tuple[int, ...] = LENGTHS

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
    most_inside: int | None = None
    """Let in and not ended at one time, where that is known."""
    length: int | None = None
    """Of the queue, where it is one."""
    spells: Spells | None = field(default=None, compare=False)
    """In which the machine was not itself, where time is real."""
