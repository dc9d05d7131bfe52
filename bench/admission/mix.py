"""Who asks, and how long they can wait."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import TypeVar

from bench.admission.offer import Offer, lone_seconds
from bench.admission.shapes import Shape, Source
from specialist.engines.sim import CostModel

_Value = TypeVar("_Value", int, float)


@dataclass(frozen=True, slots=True)
class Mix:
    classes: tuple[tuple[int, float], ...] = ((9, 0.05), (6, 0.15), (3, 0.3), (1, 0.5))
    """Priorities and their shares."""
    deadlines: tuple[tuple[float, float], ...] = ((4.0, 0.2), (10.0, 0.5), (30.0, 0.3))
    """Tight, normal and loose: how many times its own lone work a request may take, and the shares."""
    least_patience: float = 0.5
    early: float = 0.0
    """Share of answers that end before their caller's limit, which is then up to four times as far."""

    @property
    def priorities(self) -> tuple[int, ...]:
        """Highest first."""
        return tuple(sorted((priority for priority, _ in self.classes), reverse=True))


def offers(source: Source, mix: Mix, cost: CostModel, seconds: float, work_rate: float, seed: int) -> list[Offer]:
    """A load of `seconds` that asks for `work_rate` seconds of lone work a second.

    Requests are taken until there is work enough, and their gaps are then stretched or compressed alike to fill the
    time: bursts stay bursts. The seed decides everything, and the priorities of a load do not depend on its rate.
    """
    rng = Random(seed)
    shapes = _enough(source(Random(rng.random())), cost, seconds * work_rate)
    times = list(accumulate(shape.gap for shape in shapes))
    pace = seconds / (times[-1] + times[-1] / len(times))
    return [
        _offer(number, time * pace, shape, mix, cost, rng)
        for number, (time, shape) in enumerate(zip(times, shapes, strict=True))
    ]


def _enough(shapes: Iterator[Shape], cost: CostModel, work: float) -> list[Shape]:
    taken: list[Shape] = []
    while work > 0:
        taken.append(next(shapes))
        work -= lone_seconds(cost, taken[-1].prompt_tokens, taken[-1].answer_tokens)
    return taken


def _offer(number: int, at: float, shape: Shape, mix: Mix, cost: CostModel, rng: Random) -> Offer:
    work = lone_seconds(cost, shape.prompt_tokens, shape.answer_tokens)
    priority = _pick(rng, mix.classes)
    patience = max(mix.least_patience, work * _pick(rng, mix.deadlines))
    spare = rng.uniform(1.0, 4.0) if rng.random() < mix.early else 1.0
    return Offer(
        number,
        at,
        priority,
        shape.prompt_tokens,
        shape.answer_tokens,
        max_tokens=round(shape.answer_tokens * spare),
        patience=patience,
        work=work,
    )


def _pick(rng: Random, shares: tuple[tuple[_Value, float], ...]) -> _Value:
    (chosen,) = rng.choices([value for value, _ in shares], [share for _, share in shares])
    return chosen
