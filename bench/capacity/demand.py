"""Who asks for what, and when."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random

from bench.arrivals import Arrival, read_arrivals
from bench.trace import TRACE_BLOCK_SIZE

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_SPEED = 1e6


@dataclass(frozen=True, slots=True)
class Ask:
    at: float
    """Seconds since the beginning."""
    specialist: str
    prompt: tuple[int, ...]
    """Lengths of its pieces, in tokens, and what tells them from others."""
    names: tuple[int, ...]
    """Pieces of the same name have the same text."""
    answer_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt)

    def text(self) -> str:
        """A character a token."""
        return "".join(_piece(name, length) for name, length in zip(self.names, self.prompt, strict=True))


@dataclass(frozen=True, slots=True)
class Shape:
    at: float
    prompt: tuple[int, ...]
    names: tuple[int, ...]
    answer_tokens: int


class DemandRefused(ValueError):
    """What is asked of the trace cannot be."""


def read_shapes(path: Path) -> list[Shape]:
    """Of an Azure trace or a Mooncake trace, from its first request on. Raises TraceError."""
    return [_shape(number, arrival) for number, arrival in enumerate(read_arrivals(path))]


def rate_of(shapes: Sequence[Shape]) -> float:
    """Requests a second, on average."""
    return (len(shapes) - 1) / shapes[-1].at


def hurried(shapes: Sequence[Shape], rate: float | None, seconds: float | None) -> list[Shape]:
    """As many a second as asked for, its bursts as they are; over and over again until the time is up.
    What comes again comes with texts of its own: nobody has asked that before."""
    speed = 1.0 if rate is None else rate / rate_of(shapes)
    if not 0 < speed <= _MOST_SPEED:
        raise DemandRefused(f"{rate} requests/s: the trace has {rate_of(shapes):.3g}, which is too far away")
    span = shapes[-1].at + 1 / rate_of(shapes)
    until = span / speed if seconds is None else seconds
    num_names = max((name for shape in shapes for name in shape.names), default=0) + 1
    played: list[Shape] = []
    turn = 0
    while True:
        for shape in shapes:
            at = (shape.at + turn * span) / speed
            if at >= until:
                return played
            names = tuple(name + turn * num_names for name in shape.names)
            played.append(Shape(at, shape.prompt, names, shape.answer_tokens))
        turn += 1


def shared_out(shapes: Sequence[Shape], mix: Mapping[str, float], rng: Random) -> list[Ask]:
    """Every request goes to a specialist drawn by its share; requests that share a prefix go to the same one."""
    names, bounds = list(mix), list(accumulate(mix.values()))
    drawn: dict[int, str] = {}
    asks = []
    for shape in shapes:
        first = shape.names[0]
        if first not in drawn:
            drawn[first] = names[min(bisect(bounds, rng.random() * bounds[-1]), len(names) - 1)]
        asks.append(Ask(shape.at, drawn[first], shape.prompt, shape.names, shape.answer_tokens))
    return asks


def fitted(ask: Ask, context: int) -> Ask:
    """What is longer than a specialist can take is cut: the prompt from its end, if need be the answer too."""
    answer = min(ask.answer_tokens, max(1, context // 2))
    room, prompt = context - answer, list(ask.prompt)
    while sum(prompt) > room:
        prompt[-1] -= min(prompt[-1], sum(prompt) - room)
        if not prompt[-1]:
            prompt.pop()
    return Ask(ask.at, ask.specialist, tuple(prompt), ask.names[: len(prompt)], answer)


def _shape(number: int, arrival: Arrival) -> Shape:
    if arrival.blocks:
        return Shape(arrival.at, _blocks(arrival.prompt_tokens), arrival.blocks, arrival.answer_tokens)
    return Shape(arrival.at, (arrival.prompt_tokens,), (number,), arrival.answer_tokens)


def _blocks(length: int) -> tuple[int, ...]:
    full, rest = divmod(length, TRACE_BLOCK_SIZE)
    return (TRACE_BLOCK_SIZE,) * full + ((rest,) if rest else ())


def _piece(name: int, length: int) -> str:
    """Begins with its name, so that no two pieces are alike."""
    own = f"{name:x}."
    return (own + _LETTERS * (max(0, length - len(own)) // len(_LETTERS) + 1))[:length]
