"""The requests of one load: when each is due, how long it is, and whose."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from bench.arrivals import Arrival
from bench.serving.classes import CallerClass
from bench.serving.draws import Draw
from bench.serving.usage import ServeMistake
from bench.trace import TRACE_BLOCK_SIZE

MOST_ASKS = 1_000_000


Source = Callable[[Random, float], Iterator[Arrival]]
"""What comes within so many seconds."""


@dataclass(frozen=True, slots=True)
class Ask:
    number: int
    at: float
    prompt_tokens: int
    answer_tokens: int
    caller: CallerClass
    seed: int
    """Of its words: no two asks of different seeds begin alike."""
    blocks: tuple[int, ...] = ()


def asks_of(source: Source, classes: Sequence[CallerClass], seconds: float, seed: int, context: int) -> list[Ask]:
    """The seed decides everything. Prompts that would not leave room for an answer are cut to three quarters of it."""
    rng = Random(seed)
    traffic = list(islice(source(Random(rng.random()), seconds), MOST_ASKS))
    if not traffic:
        raise ServeMistake(f"nothing arrives within {seconds:g} s: raise --rate or --seconds")
    owners = rng.choices(classes, [each.share for each in classes], k=len(traffic))
    return [
        _ask(number, each, owner, seed, context)
        for number, (each, owner) in enumerate(zip(traffic, owners, strict=True))
    ]


def drawn(rate: float, gap: Draw, prompt: Draw, answer: Draw) -> Source:
    def source(rng: Random, seconds: float) -> Iterator[Arrival]:
        at = gap(rng) / rate
        while at < seconds:
            yield Arrival(at, int(prompt(rng)), int(answer(rng)))
            at += gap(rng) / rate

    return source


def recorded(traffic: Sequence[Arrival], rate: float | None) -> Source:
    """From somewhere in a trace on, and again from its beginning; with a rate, sped up or slowed down to it."""
    span = traffic[-1].at + traffic[-1].at / len(traffic)
    pace = 1.0 if rate is None else len(traffic) / span / rate

    def source(rng: Random, seconds: float) -> Iterator[Arrival]:
        index = rng.randrange(len(traffic))
        begin, laps = traffic[index].at, 0
        while True:
            each = traffic[index]
            at = (each.at + laps * span - begin) * pace
            if at >= seconds:
                return
            yield Arrival(at, each.prompt_tokens, each.answer_tokens, each.blocks)
            index += 1
            if index == len(traffic):
                index, laps = 0, laps + 1

    return source


def _ask(number: int, traffic: Arrival, caller: CallerClass, seed: int, context: int) -> Ask:
    prompt = min(traffic.prompt_tokens, max(1, context * 3 // 4))
    blocks = traffic.blocks[: -(-prompt // TRACE_BLOCK_SIZE)]
    answer = min(traffic.answer_tokens, max(1, context - prompt))
    return Ask(number, traffic.at, prompt, answer, caller, seed, blocks)
