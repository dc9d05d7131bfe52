"""The requests of one load: when each is due, how long it is, and whose."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from bench.admission.azure import read_azure
from bench.serving.classes import CallerClass
from bench.serving.draws import Draw
from bench.serving.usage import ServeMistake
from bench.trace import TRACE_BLOCK_SIZE, read_trace

MOST_ASKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """One request as a source gives it."""

    at: float
    """Seconds since the load began."""
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of the prompt's blocks where the trace tells which are shared."""


Source = Callable[[Random, float], Iterator[Traffic]]
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
    def source(rng: Random, seconds: float) -> Iterator[Traffic]:
        at = gap(rng) / rate
        while at < seconds:
            yield Traffic(at, int(prompt(rng)), int(answer(rng)))
            at += gap(rng) / rate

    return source


def recorded(path: Path, rate: float | None) -> Source:
    """From somewhere in the trace on, and again from its beginning; with a rate, sped up or slowed down to it.

    Raises TraceError.
    """
    traffic = _read(path)
    span = traffic[-1].at + traffic[-1].at / len(traffic)
    pace = 1.0 if rate is None else len(traffic) / span / rate

    def source(rng: Random, seconds: float) -> Iterator[Traffic]:
        index = rng.randrange(len(traffic))
        begin, laps = traffic[index].at, 0
        while True:
            each = traffic[index]
            at = (each.at + laps * span - begin) * pace
            if at >= seconds:
                return
            yield Traffic(at, each.prompt_tokens, each.answer_tokens, each.blocks)
            index += 1
            if index == len(traffic):
                index, laps = 0, laps + 1

    return source


def _read(path: Path) -> list[Traffic]:
    """By how the file begins: JSON lines as Mooncake's, or CSV as Azure's."""
    with path.open("rb") as file:
        is_json = file.read(64).lstrip().startswith(b"{")
    traffic = _mooncake(path) if is_json else _azure(path)
    if traffic[-1].at <= 0:
        raise ServeMistake(f"{path}: all requests arrive at once, which is no load over time")
    return traffic


def _mooncake(path: Path) -> list[Traffic]:
    requests = sorted(read_trace(path), key=lambda each: each.timestamp)
    begin = requests[0].timestamp
    return [
        Traffic((each.timestamp - begin) / 1000, each.input_length, max(1, each.output_length), each.hash_ids)
        for each in requests
    ]


def _azure(path: Path) -> list[Traffic]:
    traffic, at = [], 0.0
    for number, shape in enumerate(read_azure(path)):
        at += shape.gap if number else 0.0
        traffic.append(Traffic(at, shape.prompt_tokens, max(1, shape.answer_tokens)))
    return traffic


def _ask(number: int, traffic: Traffic, caller: CallerClass, seed: int, context: int) -> Ask:
    prompt = min(traffic.prompt_tokens, max(1, context * 3 // 4))
    blocks = traffic.blocks[: -(-prompt // TRACE_BLOCK_SIZE)]
    answer = min(traffic.answer_tokens, max(1, context - prompt))
    return Ask(number, traffic.at, prompt, answer, caller, seed, blocks)
