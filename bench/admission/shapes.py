"""Where the requests of a load come from: gaps and lengths without end, drawn or recorded."""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

Source = Callable[[Random], "Iterator[Shape]"]
"""The same random source, the same shapes."""


class Shape(NamedTuple):
    gap: float
    """Since the one before; only relations count, a load is stretched to its rate."""
    prompt_tokens: int
    answer_tokens: int


def drawn(context: int, prompt: tuple[float, float] = (64, 0.9), answer: tuple[float, float] = (24, 0.8)) -> Source:
    """A Poisson stream. Lengths are lognormal, by median and sigma: many are short, a few many times as long."""

    def shapes(rng: Random) -> Iterator[Shape]:
        while True:
            lengths = (_lognormal(rng, *prompt, most=context // 2), _lognormal(rng, *answer, most=context // 2))
            yield Shape(rng.expovariate(1.0), *lengths)

    return shapes


def recorded(trace: Sequence[Shape]) -> Source:
    """A trace from somewhere in it, and again from its beginning."""

    def shapes(rng: Random) -> Iterator[Shape]:
        return islice(cycle(trace), rng.randrange(len(trace)), None)

    return shapes


def _lognormal(rng: Random, median: float, sigma: float, most: int) -> int:
    return min(max(round(median * rng.lognormvariate(0.0, sigma)), 1), most)
