"""Recorded traffic, whichever way it was written down: when each request came and how long it was."""

from dataclasses import dataclass
from pathlib import Path

from bench.admission.azure import read_azure
from bench.trace import TraceError, read_trace


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    """Seconds since the first one."""
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of the prompt's blocks where the trace tells which are shared."""


def read_arrivals(path: Path) -> list[Arrival]:
    """By how the file begins: JSON lines as Mooncake's, or CSV as Azure's. Raises TraceError."""
    with path.open("rb") as file:
        is_json = file.read(64).lstrip().startswith(b"{")
    arrivals = _mooncake(path) if is_json else _azure(path)
    if arrivals[-1].at <= 0:
        raise TraceError(path, 1, "a trace has at least two requests, not all at once")
    return arrivals


def _mooncake(path: Path) -> list[Arrival]:
    requests = sorted(read_trace(path), key=lambda each: each.timestamp)
    first = requests[0].timestamp
    return [
        Arrival((each.timestamp - first) / 1000, each.input_length, max(1, each.output_length), each.hash_ids)
        for each in requests
    ]


def _azure(path: Path) -> list[Arrival]:
    arrivals, at = [], 0.0
    for number, shape in enumerate(read_azure(path)):
        at += shape.gap if number else 0.0
        arrivals.append(Arrival(at, shape.prompt_tokens, max(1, shape.answer_tokens)))
    return arrivals
