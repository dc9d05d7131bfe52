"""Request traces: Azure and Mooncake files, and the demand that a simulation derives from them."""

import csv
import json
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

TRACE_BLOCK_SIZE = 512  # tokens that one hash id stands for
_MOST_ID = 2**32 - 1
_AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_SPEED = 1e6


class TraceError(ValueError):
    """A trace cannot be read. The message states where and why."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}, line {line}: {why}")
        self.path = path
        self.line = line


class DemandRefused(ValueError):
    """The requested demand cannot be derived from the trace."""


@dataclass(frozen=True, slots=True)
class MooncakeRequest:
    """A line of a Mooncake trace. A hash id identifies a block of the prompt and everything before it; the last block
    may be partial."""

    timestamp: int  # milliseconds since the beginning of the trace
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.input_length < 1:
            raise ValueError(f"input_length must be at least 1, got {self.input_length}")
        expected = -(-self.input_length // TRACE_BLOCK_SIZE)
        if len(self.hash_ids) != expected:
            raise ValueError(f"{self.input_length} tokens make {expected} blocks, got {len(self.hash_ids)} hash_ids")


def read_trace(path: Path) -> list[MooncakeRequest]:
    """Read a Mooncake trace. Raises TraceError for a malformed line or an empty file."""
    requests = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                requests.append(_parse_line(line))
            except (ValueError, RecursionError) as error:
                raise TraceError(path, number, str(error)) from error
    if not requests:
        raise TraceError(path, 1, "the file is empty")
    return requests


def _parse_line(line: bytes) -> MooncakeRequest:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    numbers = {name: _parse_integer(fields, name) for name in ("timestamp", "input_length", "output_length")}
    ids = fields.get("hash_ids")
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids must be a list, got {ids!r}")
    for value in ids:
        if type(value) is not int or not 0 <= value <= _MOST_ID:
            raise ValueError(f"hash_ids must hold integers in [0, 2**32), got {value!r}")
    return MooncakeRequest(**numbers, hash_ids=tuple(ids))


def _parse_integer(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be an integer of at least 0, got {value!r}")
    return value


class LengthShape(NamedTuple):
    gap: float  # seconds since the previous request
    prompt_tokens: int
    answer_tokens: int


def read_azure(path: Path) -> list[LengthShape]:
    """Read an Azure trace. The first request has no predecessor and gets the average gap. Raises TraceError for a
    malformed line, and for a trace of fewer than two requests."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        try:
            if next(lines, None) != _AZURE_HEADER:
                raise ValueError(f"the header must be {','.join(_AZURE_HEADER)}")
            rows = [_parse_row(row) for row in lines]
        except (ValueError, csv.Error) as error:
            raise TraceError(path, max(1, lines.line_num), str(error)) from error
    if len(rows) < 2:
        raise TraceError(path, 1, f"a trace must have at least 2 requests, got {len(rows)}")
    gaps = [(after[0] - before[0]).total_seconds() for before, after in pairwise(rows)]
    if min(gaps) < 0:
        raise TraceError(path, gaps.index(min(gaps)) + 3, "the time is earlier than on the previous line")
    mean = sum(gaps) / len(gaps)
    return [LengthShape(gap, prompt, answer) for gap, (_, prompt, answer) in zip([mean, *gaps], rows, strict=True)]


def _parse_row(row: list[str]) -> tuple[datetime, int, int]:
    """Parse a line. A time without a time zone is UTC."""
    if len(row) != len(_AZURE_HEADER):
        raise ValueError(f"expected {len(_AZURE_HEADER)} columns, got {len(row)}")
    at = datetime.fromisoformat(row[0])
    return at if at.tzinfo else at.replace(tzinfo=UTC), _parse_tokens(row[1], 1), _parse_tokens(row[2], 0)


def _parse_tokens(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"a number of tokens must be a whole number of at least {least}, got {text!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds since the first arrival
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...] = ()  # ids of the prompt's blocks, if the trace states which blocks are shared


def read_arrivals(path: Path) -> list[Arrival]:
    """Read a trace of either format: Mooncake's JSON lines or Azure's CSV. Raises TraceError for an invalid file."""
    with path.open("rb") as file:
        is_json = file.read(64).lstrip().startswith(b"{")
    if is_json:
        requests = sorted(read_trace(path), key=lambda each: each.timestamp)
        times = [(each.timestamp - requests[0].timestamp) / 1000 for each in requests]
        lengths = [(each.input_length, max(1, each.output_length), each.hash_ids) for each in requests]
    else:
        shapes = read_azure(path)
        times = list(accumulate((shape.gap for shape in shapes[1:]), initial=0.0))
        lengths = [(shape.prompt_tokens, max(1, shape.answer_tokens), ()) for shape in shapes]
    arrivals = [Arrival(at, *length) for at, length in zip(times, lengths, strict=True)]
    if arrivals[-1].at <= 0:
        raise TraceError(path, 1, "a trace needs at least two requests at different times")
    return arrivals


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Its prompt consists of pieces; pieces with the same name begin with the same text."""

    at: float  # seconds since the beginning
    prompt: tuple[int, ...]  # number of tokens of each piece
    names: tuple[int, ...]
    answer_tokens: int
    specialist: str = ""  # empty until a specialist is drawn

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt)

    def text(self) -> str:
        """Return one character per token. A piece begins with its name, so that pieces with different names differ."""
        pieces = []
        for name, length in zip(self.names, self.prompt, strict=True):
            own = f"{name:x}."
            pieces.append((own + _LETTERS * (max(0, length - len(own)) // len(_LETTERS) + 1))[:length])
        return "".join(pieces)


def read_demand(path: Path) -> list[TraceRequest]:
    """Read an Azure or a Mooncake trace; times count from its first request. Raises TraceError for an invalid file."""
    demand = []
    for number, arrival in enumerate(read_arrivals(path)):
        size = TRACE_BLOCK_SIZE if arrival.blocks else arrival.prompt_tokens
        full, rest = divmod(arrival.prompt_tokens, size)
        prompt = (size,) * full + ((rest,) if rest else ())
        demand.append(TraceRequest(arrival.at, prompt, arrival.blocks or (number,), arrival.answer_tokens))
    return demand


def request_rate(demand: Sequence[TraceRequest]) -> float:
    return (len(demand) - 1) / demand[-1].at


def scale_demand(demand: Sequence[TraceRequest], rate: float | None, seconds: float | None) -> list[TraceRequest]:
    """Scale the trace to `rate`, keeping its bursts, and repeat or cut it to a length of `seconds`. Repeated requests
    get new prompts. Raises DemandRefused if the rate is too far from that of the trace."""
    own_rate = request_rate(demand)
    speed = 1.0 if rate is None else rate / own_rate
    if not 0 < speed <= _MOST_SPEED:
        raise DemandRefused(f"{rate} requests/s is too far from the {own_rate:.3g} requests/s of the trace")
    span = demand[-1].at + 1 / own_rate
    until = span / speed if seconds is None else seconds
    num_names = max((name for each in demand for name in each.names), default=0) + 1
    scaled: list[TraceRequest] = []
    turn = 0
    while True:
        for each in demand:
            at = (each.at + turn * span) / speed
            if at >= until:
                return scaled
            scaled.append(replace(each, at=at, names=tuple(name + turn * num_names for name in each.names)))
        turn += 1


def assign_specialists(demand: Sequence[TraceRequest], mix: Mapping[str, float], rng: Random) -> list[TraceRequest]:
    """Draw a specialist for every request according to the mix, the same one for requests that share a prefix."""
    names, bounds = list(mix), list(accumulate(mix.values()))
    drawn: dict[int, str] = {}
    for each in demand:
        if each.names[0] not in drawn:
            drawn[each.names[0]] = names[min(bisect(bounds, rng.random() * bounds[-1]), len(names) - 1)]
    return [replace(each, specialist=drawn[each.names[0]]) for each in demand]


def fit_to_context(request: TraceRequest, context: int) -> TraceRequest:
    """Cut a request to fit the context: limit the answer to half of the context, then cut off the end of the prompt."""
    answer = min(request.answer_tokens, max(1, context // 2))
    room, prompt = context - answer, list(request.prompt)
    while sum(prompt) > room:
        prompt[-1] -= min(prompt[-1], sum(prompt) - room)
        if not prompt[-1]:
            prompt.pop()
    return replace(request, prompt=tuple(prompt), names=request.names[: len(prompt)], answer_tokens=answer)
