"""Reads JSON texts and a schema from standard input and says what is wrong with them, in a process of its own."""

import json
import os
import resource
import sys
from collections.abc import Iterable
from math import isfinite
from typing import Any, NoReturn

from router.verify.schema import mismatch

MEMORY = 1 << 30
MOST_DEPTH = 256
_MOST_DIGITS = 4000
_MOST_SHOWN = 40


def main() -> None:
    os.nice(19)
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    print(json.dumps([trouble_with(text, asked["schema"]) for text in asked["texts"]]))


def trouble_with(text: str, schema: Any) -> str:
    """Empty where it is JSON, and as the schema wants it."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_int=_whole, parse_float=_finite)
        if _is_deep(value):
            return f"nested deeper than {MOST_DEPTH}"
        return mismatch(value, schema)
    except ValueError as error:
        return f"no JSON: {error}"
    except (RecursionError, MemoryError):
        return f"nested deeper than {MOST_DEPTH}, or too large"


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _whole(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else _finite(digits)


def _finite(digits: str) -> float:
    if not isfinite(value := float(digits)):
        raise ValueError(f"{digits[:_MOST_SHOWN]} is larger than any number here")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [inner for one in level for inner in _inside(one)]
    return any(isinstance(one, dict | list) for one in level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
