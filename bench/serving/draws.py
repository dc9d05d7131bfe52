"""Distributions, as they are written on a command line: of lengths, and of the gaps between arrivals."""

from collections.abc import Callable
from math import isfinite
from random import Random

from bench.serving.usage import ServeMistake

Draw = Callable[[Random], float]
_LENGTHS = "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA"
_ARRIVALS = "poisson, gamma:CV or constant"
MOST_TOKENS = 1_000_000


def parse_length(text: str) -> Draw:
    """Whole numbers of tokens, at least 1."""
    kind, *words = text.split(":")
    if kind.isdecimal() and not words:
        return _constant(_tokens(kind, text))
    if kind == "uniform" and len(words) == 2:
        low, high = (_tokens(word, text) for word in words)
        if low > high:
            raise ServeMistake(f"{text!r}: {low} is more than {high}")
        return lambda rng: rng.randint(low, high)
    if kind == "lognormal" and len(words) == 2:
        median, sigma = _number(words[0], text), _number(words[1], text)
        return lambda rng: max(1, round(min(median * rng.lognormvariate(0.0, sigma), MOST_TOKENS)))
    raise ServeMistake(f"a length is {_LENGTHS}, got {text!r}")


def parse_gaps(text: str) -> Draw:
    """Gaps with a mean of 1."""
    kind, *words = text.split(":")
    if kind == "poisson" and not words:
        return lambda rng: rng.expovariate(1.0)
    if kind == "constant" and not words:
        return _constant(1.0)
    if kind == "gamma" and len(words) == 1:
        variation = _number(words[0], text)
        shape = 1 / variation**2
        return lambda rng: rng.gammavariate(shape, 1 / shape)
    raise ServeMistake(f"arrivals are {_ARRIVALS}, got {text!r}")


def _constant(value: float) -> Draw:
    return lambda _: value


def _tokens(word: str, text: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= MOST_TOKENS:
        raise ServeMistake(f"{text!r}: a number of tokens is a whole number from 1 to {MOST_TOKENS:,}")
    return int(word)


def _number(word: str, text: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not (isfinite(number) and number > 0):
        raise ServeMistake(f"{text!r}: {word!r} must be a number above 0")
    return number
