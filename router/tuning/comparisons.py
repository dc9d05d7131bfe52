"""Comparisons as lines of JSON: kept by whoever wants to tune without the router."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from google.protobuf.json_format import ParseDict, ParseError

from octet.sdk.operating import Comparison
from octet.v1 import operator_pb2 as wire


def read_comparisons(path: Path) -> Iterator[Comparison]:
    """Raises OSError, and ValueError that names the line."""
    with path.open(encoding="utf-8") as lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _comparison(line, f"{path}:{number}")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} must be valid UTF-8: byte {error.start} is not") from None


def write_comparisons(comparisons: Iterable[Comparison], file: TextIO) -> Iterator[Comparison]:
    """Each is handed on once it is written."""
    for comparison in comparisons:
        file.write(json.dumps(comparison.to_dict(), ensure_ascii=False) + "\n")
        yield comparison


def _comparison(line: str, place: str) -> Comparison:
    try:
        found = json.loads(line)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair is no text, and protobuf stumbles
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: a line must be JSON, as --export writes it: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{place}: a line must be an octet.v1.Comparison, as --export writes it")
    try:
        return Comparison.from_wire(ParseDict(found, wire.Comparison()))
    except (ParseError, ValueError, OverflowError) as error:
        raise ValueError(f"{place}: a line must be an octet.v1.Comparison, as --export writes it: {error}") from None
