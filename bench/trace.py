"""Recorded traffic in the format of the Mooncake traces: one JSON object a line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACE_BLOCK_SIZE = 512
"""Tokens that one hash id stands for."""

_MOST_ID = 2**32 - 1


class TraceError(ValueError):
    """A trace cannot be read. Says where and why."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}, line {line}: {why}")
        self.path = path
        self.line = line


@dataclass(frozen=True, slots=True)
class TraceRequest:
    timestamp: int
    """Milliseconds since the trace began."""
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    """A name for each block of the prompt and all that is before it; the last block may be partial."""

    def __post_init__(self) -> None:
        if self.input_length < 1:
            raise ValueError(f"input_length must be at least 1, got {self.input_length}")
        expected = -(-self.input_length // TRACE_BLOCK_SIZE)
        if len(self.hash_ids) != expected:
            raise ValueError(f"{self.input_length} tokens make {expected} blocks, got {len(self.hash_ids)} hash_ids")


def read_trace(path: Path) -> list[TraceRequest]:
    """Raises TraceError for a malformed line and for a file without any."""
    requests = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                requests.append(_parse(line))
            except (ValueError, RecursionError) as error:
                raise TraceError(path, number, str(error)) from error
    if not requests:
        raise TraceError(path, 1, "the file is empty")
    return requests


def _parse(line: bytes) -> TraceRequest:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
    return TraceRequest(
        timestamp=_integer(fields, "timestamp"),
        input_length=_integer(fields, "input_length"),
        output_length=_integer(fields, "output_length"),
        hash_ids=_ids(fields),
    )


def _integer(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be an integer of at least 0, got {value!r}")
    return value


def _ids(fields: Mapping[str, Any]) -> tuple[int, ...]:
    ids = fields.get("hash_ids")
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids must be a list, got {ids!r}")
    for value in ids:
        if type(value) is not int or not 0 <= value <= _MOST_ID:
            raise ValueError(f"hash_ids must hold integers in [0, 2**32), got {value!r}")
    return tuple(ids)
