"""Recorded traffic in the format of the Azure LLM inference traces: arrival, prompt tokens, answer tokens."""

import csv
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from bench.admission.shapes import Shape
from bench.trace import TraceError

_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_PROMPTS = 0.75
"""Share of the context that the longest prompt is scaled to."""


def read_azure(path: Path) -> list[Shape]:
    """Gaps in seconds. Raises TraceError for a malformed line, and for a trace of fewer than two requests."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        try:
            if next(lines, None) != _HEADER:
                raise ValueError(f"the header must be {','.join(_HEADER)}")
            rows = [_row(row) for row in lines]
        except (ValueError, csv.Error) as error:
            raise TraceError(path, max(1, lines.line_num), str(error)) from error
    if len(rows) < 2:
        raise TraceError(path, 1, f"a trace has at least 2 requests, this has {len(rows)}")
    return _shapes(path, rows)


def fitted(trace: list[Shape], context: int) -> list[Shape]:
    """Prompts shrunk alike until the longest leaves room for an answer; answers as they are, cut to the room left."""
    shrink = min(1.0, _PROMPTS * context / max(shape.prompt_tokens for shape in trace))
    return [_fit(shape, shrink, context) for shape in trace]


def _fit(shape: Shape, shrink: float, context: int) -> Shape:
    prompt = max(1, round(shape.prompt_tokens * shrink))
    return Shape(shape.gap, prompt, min(max(1, shape.answer_tokens), context - prompt))


def _row(row: list[str]) -> tuple[datetime, int, int]:
    if len(row) != len(_HEADER):
        raise ValueError(f"expected {len(_HEADER)} columns, got {len(row)}")
    return _time(row[0]), _tokens(row[1], 1), _tokens(row[2], 0)


def _time(text: str) -> datetime:
    """UTC's where it names no zone: what names one and what does not are not told apart otherwise."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _tokens(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"a number of tokens must be a whole number of at least {least}, got {text!r}")
    return int(text)


def _shapes(path: Path, rows: list[tuple[datetime, int, int]]) -> list[Shape]:
    """The first follows the last, were the trace to go on, after an average gap."""
    gaps = [(after[0] - before[0]).total_seconds() for before, after in pairwise(rows)]
    if min(gaps) < 0:
        raise TraceError(path, gaps.index(min(gaps)) + 3, "earlier than the line before")
    mean = sum(gaps) / len(gaps)
    return [Shape(gap, prompt, answer) for gap, (_, prompt, answer) in zip([mean, *gaps], rows, strict=True)]
