"""From bytes to one JSON object. What is deep, endless, ambiguous or no JSON is refused before it costs much."""

import json
import re
from typing import Any, NoReturn

from router.http.fault import Fault

MOST_DEPTH = 32
MOST_VALUES = 20_000
"""Objects, lists, texts, numbers, true, false and null, at every level. A byte of an empty list costs fifty in
memory."""
_MOST_QUOTES = 20_000
"""Up to so many, strings are cut out before anything is counted; more of them are sooner looked at than cut out."""
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)(\s*+:)?|[\[\]{}]|[^\s\[\]{},:"]++|[\s,:]++', re.DOTALL)
"""Strings as a whole, ended or not, with the colon behind a key; brackets; everything else that is a value; what stands
between them, however long it is. Every byte is looked at once, but the blanks behind a string, twice; plain text is run
through, not chosen byte by byte."""
_BETWEEN = b" \t\n\r\f\v,:"


def parse_object(raw: bytes) -> dict[str, Any]:
    """Raises Fault."""
    _check_shape(raw)
    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=_without_duplicates, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise _unreadable(f"the byte 0x{raw[error.start]:02x} at {error.start:,} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(str(error)) from None
    if not isinstance(parsed, dict):
        raise _unreadable("it must be an object, in braces")
    return parsed


def _check_shape(raw: bytes) -> None:
    """What is no JSON at all is left to the parser, which says where."""
    outline = _outline(raw)
    if _is_surely_small(outline):
        return
    depth = num_values = num_keys = 0
    for mark in _MARKS.finditer(outline):
        first = outline[mark.start()]
        if first in _BETWEEN:
            continue
        depth += (first in b"[{") - (first in b"]}")
        if mark[1]:
            num_keys += 1
        elif first not in b"]}":
            num_values += 1
        if depth > MOST_DEPTH:
            raise _unreadable(f"it is nested deeper than {MOST_DEPTH} levels")
        if num_values > MOST_VALUES:
            raise _unreadable(f"it holds more than {MOST_VALUES:,} values")
        if depth < 0 or num_keys > num_values:
            return


def _is_surely_small(raw: bytes) -> bool:
    """Told by counting, which costs next to nothing: a value is the first of its brackets or stands behind a comma."""
    num_opened = raw.count(b"[") + raw.count(b"{")
    return num_opened <= MOST_DEPTH and 1 + num_opened + raw.count(b",") <= MOST_VALUES


def _outline(raw: bytes) -> bytes:
    """The same with all strings empty, where there are not too many: a prompt full of brackets is nothing deep, and to
    cut it out takes a tenth of looking at it. One that does not end is left out."""
    if raw.count(b'"') > _MOST_QUOTES:
        return raw
    outside: list[bytes] = []
    is_inside = False
    for part in raw.split(b'"'):
        if not is_inside:
            outside.append(part)
            is_inside = True
        elif not part.endswith(b"\\") or _num_backslashes_behind(part) % 2 == 0:
            is_inside = False
    return b'""'.join(outside)


def _num_backslashes_behind(part: bytes) -> int:
    return len(part) - len(part.rstrip(b"\\"))


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if not all(map(_is_text, found)):
        raise ValueError("a key in it is half of a surrogate pair")
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:60]!r} stands in it twice")
    return found


def _is_text(key: str) -> bool:
    """Errors name fields, and must be writable as UTF-8."""
    try:
        return key.isascii() or bool(key.encode())
    except UnicodeEncodeError:
        return False


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _unreadable(why: str) -> Fault:
    return Fault(400, f"the body is not the JSON object it must be: {why}", code="malformed")
