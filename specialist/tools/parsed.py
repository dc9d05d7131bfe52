"""Whole calls out of the JSON that a model wrote for them."""

import json
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, NoReturn

from specialist.tools.dialect import Dialect

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"


class Written(NamedTuple):
    name: str
    arguments: str
    """As the model wrote it."""


def parsed(text: str, dialect: Dialect, names: Collection[str]) -> list[Written] | None:
    """None for what is no call, or one of a tool that is not there."""
    try:
        json.loads(text, parse_constant=_no_constant)
        objects = list(_elements(text)) if dialect.is_list else [text]
        calls = [_call(each, dialect.key, names) for each in objects]
    except (ValueError, RecursionError):
        return None
    return calls or None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _call(text: str, key: str, names: Collection[str]) -> Written:
    members = dict(_members(text))
    name, arguments = json.loads(members.get("name", "null")), members.get(key, "")
    if not isinstance(name, str) or name not in names or not arguments.startswith("{"):
        raise ValueError("no call")
    return Written(name, arguments)


def _elements(text: str) -> Iterator[str]:
    """Of a list, each as it is written."""
    at = _past(text, 0, "[")
    while text[at] != "]":
        value, after = _value(text, at)
        yield value
        at = _past(text, after, ",") if text[after] == "," else after


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Of an object: its keys, and each value as it is written."""
    at = _past(text, 0, "{")
    while text[at] != "}":
        key, after = _value(text, at)
        value, after = _value(text, _past(text, after, ":"))
        name: Any = json.loads(key)
        yield str(name), value
        at = _past(text, after, ",") if text[after] == "," else after


def _value(text: str, at: int) -> tuple[str, int]:
    """And where the next mark is."""
    _, end = _DECODER.raw_decode(text, at)
    return text[at:end], _skip(text, end)


def _past(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if text[at] != mark:
        raise ValueError(f"no {mark}")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at
