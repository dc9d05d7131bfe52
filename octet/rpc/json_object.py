"""A JSON object out of text that somebody sent, which may be deep, endless or no JSON."""

import json
import re
from typing import Any, NoReturn

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class NotAnObject(ValueError):
    """Names what it must be, and what came instead."""

    def __init__(self, limit: str, value: str) -> None:
        super().__init__(f"must be {limit}, got {value}")
        self.limit = limit
        self.value = value


def json_object(text: str, most_depth: int) -> dict[str, Any]:
    """Raises NotAnObject; what is too deep is never read."""
    found = _depth(text)
    if found > most_depth:
        raise NotAnObject(f"at most {most_depth} brackets deep", f"{found:,}")
    try:
        parsed = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise NotAnObject("JSON", str(error)) from None
    if not isinstance(parsed, dict):
        raise NotAnObject("a JSON object", type(parsed).__name__)
    return parsed


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _depth(text: str) -> int:
    """Of brackets inside each other, whatever strings say."""
    deepest = depth = 0
    for bracket in re.findall(r"[\[{\]}]", _STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
