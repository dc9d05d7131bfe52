"""The requests of a load: arrival times, lengths, classes of callers and their deadlines."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from random import Random
from typing import Any

from octet.cli.arguments import parse_float
from simulation.traces import TRACE_BLOCK_SIZE, Arrival


class ServeMistake(ValueError):
    """An option, a file or an endpoint cannot be used. The message is one line."""


Draw = Callable[[Random], float]
_LENGTHS = "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA"
_ARRIVALS = "poisson, gamma:CV or constant"
MOST_TOKENS = 1_000_000


def parse_length(text: str) -> Draw:
    kind, *words = text.split(":")
    if kind.isdecimal() and not words:
        tokens = _tokens(kind, text)
        return lambda _: tokens
    if kind == "uniform" and len(words) == 2:
        low, high = (_tokens(word, text) for word in words)
        if low > high:
            raise ServeMistake(f"{text!r}: LOW ({low}) must be at most HIGH ({high})")
        return lambda rng: rng.randint(low, high)
    if kind == "lognormal" and len(words) == 2:
        median, sigma = _number(words[0], text), _number(words[1], text)
        return lambda rng: max(1, round(min(median * rng.lognormvariate(0.0, sigma), MOST_TOKENS)))
    raise ServeMistake(f"a length must be written as {_LENGTHS}, got {text!r}")


def parse_gaps(text: str) -> Draw:
    kind, *words = text.split(":")
    if kind == "poisson" and not words:
        return lambda rng: rng.expovariate(1.0)
    if kind == "constant" and not words:
        return lambda _: 1.0
    if kind == "gamma" and len(words) == 1:
        variation = _number(words[0], text)
        shape = 1 / variation**2
        return lambda rng: rng.gammavariate(shape, 1 / shape)
    raise ServeMistake(f"arrivals must be written as {_ARRIVALS}, got {text!r}")


def _tokens(word: str, text: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= MOST_TOKENS:
        raise ServeMistake(f"{text!r}: a number of tokens must be a whole number from 1 to {MOST_TOKENS:,}")
    return int(word)


def _number(word: str, text: str) -> float:
    number = parse_float(word)
    if not 0 < number < inf:
        raise ServeMistake(f"{text!r}: {word!r} must be a number above 0")
    return number


_FIELDS = ("share", "priority", "ttft_ms", "total_ms")
_SHAPE = "NAME:SHARE:PRIORITY:TTFT_MS:TOTAL_MS"


@dataclass(frozen=True, slots=True)
class CallerClass:
    name: str
    share: float  # relative to the other classes
    priority: int
    ttft: float  # seconds until the first token
    total: float  # seconds until the last token

    def __post_init__(self) -> None:
        if not self.name:
            raise ServeMistake("a class needs a name")
        if not (isfinite(self.share) and self.share > 0):
            raise ServeMistake(f"class {self.name}: the share must be above 0, got {self.share}")
        if not 0 <= self.priority <= 9:
            raise ServeMistake(f"class {self.name}: the priority must be from 0 to 9, got {self.priority}")
        if not (isfinite(self.total) and 0 < self.ttft <= self.total):
            raise ServeMistake(f"class {self.name}: 0 < ttft_ms <= total_ms must hold")


USUAL = (CallerClass("interactive", 0.7, 6, 1.0, 10.0), CallerClass("batch", 0.3, 2, 5.0, 30.0))


def parse_class(text: str) -> CallerClass:
    name, *numbers = text.split(":")
    if len(numbers) != len(_FIELDS):
        raise ServeMistake(f"a class must be written as {_SHAPE}, got {text!r}")
    return _build_class(name, dict(zip(_FIELDS, numbers, strict=True)))


def read_classes(path: Path) -> tuple[CallerClass, ...]:
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ServeMistake(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(table, dict) or not table:
        raise ServeMistake(f"{path}: must be a mapping with the name of each class as a key")
    try:
        return checked([_build_class(str(name), fields) for name, fields in table.items()])
    except ServeMistake as mistake:
        raise ServeMistake(f"{path}: {mistake}") from mistake


def checked(classes: Sequence[CallerClass]) -> tuple[CallerClass, ...]:
    names = [each.name for each in classes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ServeMistake(f"class {twice[0]} is given twice")
    return tuple(classes)


def _build_class(name: str, fields: Any) -> CallerClass:
    if not isinstance(fields, dict) or set(fields) != set(_FIELDS):
        raise ServeMistake(f"class {name}: must have {', '.join(_FIELDS)}, and nothing else")
    try:
        share, ttft_ms, total_ms = (float(fields[field]) for field in ("share", "ttft_ms", "total_ms"))
        priority = int(fields["priority"])
    except (TypeError, ValueError) as error:
        raise ServeMistake(f"class {name}: {error}") from error
    return CallerClass(name, share, priority, ttft_ms / 1000, total_ms / 1000)


MOST_ASKS = 1_000_000


Source = Callable[[Random, float], Iterator[Arrival]]  # arrivals within this many seconds


@dataclass(frozen=True, slots=True)
class Ask:
    number: int
    at: float
    prompt_tokens: int
    answer_tokens: int
    caller: CallerClass
    seed: int  # seed of its text
    blocks: tuple[int, ...] = ()


def draw_asks(source: Source, classes: Sequence[CallerClass], seconds: float, seed: int, context: int) -> list[Ask]:
    """Return a load's requests, drawn from the seed. Prompts are cut to 3/4 of the context, and answers to the rest of
    it."""
    rng = Random(seed)
    traffic = list(islice(source(Random(rng.random()), seconds), MOST_ASKS))
    if not traffic:
        raise ServeMistake(f"no request arrives within {seconds:g} s: raise --rate or --seconds")
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
    """Return a source that starts at a random place of the trace and repeats it, sped up or slowed down to the rate."""
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


# Three letters each: one token in most vocabularies, and with the space four bytes.
_WORDS = tuple(
    re.findall(
        "...",
        "theandforyounotarebutallcanhadherwasoneouroutdaygethashimhishowmannewnowoldseetwo"
        "waywhoboydiditsletputsayshetoouseairarmbedbigboxcarcutdogdryeatendeyefarfewflyfun",
    )
)


@dataclass(frozen=True, slots=True)
class TokenCount:
    a_word: float = 1.0
    around: float = 0.0  # tokens that the template adds

    def __str__(self) -> str:
        return f"{self.a_word:.3g} tokens a word, {self.around:.3g} around a prompt"

    def words(self, tokens: float) -> int:
        return max(1, round((tokens - self.around) / self.a_word))


def fit_count(short: tuple[int, int], long: tuple[int, int]) -> TokenCount:
    slope = (long[1] - short[1]) / (long[0] - short[0])
    return TokenCount(slope, short[1] - slope * short[0]) if slope > 0 else TokenCount()


def build_prompt(ask: Ask, count: TokenCount) -> str:
    """Return the prompt of a request. Two prompts begin alike as far as their blocks in the trace are equal."""
    words = count.words(ask.prompt_tokens)
    if not ask.blocks:
        return draw_words(words, f"{ask.seed}, {ask.number}")
    a_block = max(1, round(TRACE_BLOCK_SIZE / count.a_word))
    text = [word for block in ask.blocks for word in draw_words(a_block, f"block {block}").split()]
    return " ".join(text[:words])


def draw_words(number: int, seed: str) -> str:
    return " ".join(Random(seed).choices(_WORDS, k=number))


ClassFields = Callable[[CallerClass], dict[str, Any]]  # more fields of the request body
_HIGHEST = 9


def is_octet(model: str) -> bool:
    return model == "octet" or model.startswith("octet/")


def to_octet(caller: CallerClass) -> dict[str, Any]:
    times = {"timeout_ms": caller.total, "first_token_timeout_ms": caller.ttft}
    own = {name: max(1, round(1000 * seconds)) for name, seconds in times.items()}
    return {"octet": {"priority": caller.priority, **own}}


def to_vllm(caller: CallerClass) -> dict[str, Any]:
    """Return the priority as vLLM's field: vLLM serves lower numbers first. It has no deadlines."""
    return {"priority": _HIGHEST - caller.priority}
