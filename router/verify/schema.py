"""JSON Schema, as much of it as an answer is usually held to. What is not known here is refused, never ignored."""

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_SAYS_NOTHING = frozenset({"$schema", "$id", "$comment", "title", "description", "default", "examples", "format"})
_SCHEMAS = frozenset({"items", "not"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf"})
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_OTHERS = frozenset({"type", "properties", "required", "enum", "const", "additionalProperties", "pattern"})
KEYWORDS = _SAYS_NOTHING | _SCHEMAS | _LISTS | _NUMBERS | _COUNTS | _OTHERS
MOST_DEPTH = 64


class BadSchema(ValueError):
    """It is no schema, or asks for what is not known here."""


def check_schema(schema: Any, where: str = "the schema", depth: int = 0) -> None:
    """Raises BadSchema that names the place."""
    if depth > MOST_DEPTH:
        raise BadSchema(f"{where}: nested deeper than {MOST_DEPTH}")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise BadSchema(f"{where}: a schema is an object, true or false")
    for keyword, value in schema.items():
        _check_keyword(keyword, value, f"{where}/{keyword}")
        for name, inner in _inner(keyword, value):
            check_schema(inner, f"{where}/{keyword}{name}", depth + 1)


def _check_keyword(keyword: str, value: Any, where: str) -> None:
    if keyword not in KEYWORDS:
        raise BadSchema(f"{where}: not known here; what is: {', '.join(sorted(KEYWORDS))}")
    if keyword == "type" and not (value_types := value if isinstance(value, list) else [value]):
        raise BadSchema(f"{where}: no type at all")
    if keyword == "type" and any(not isinstance(one, str) or one not in _TYPES for one in value_types):
        raise BadSchema(f"{where}: a type is one of {', '.join(_TYPES)}, or a list of them")
    if keyword in _NUMBERS and (not _is_finite(value) or (keyword == "multipleOf" and value <= 0)):
        raise BadSchema(f"{where}: must be a number{' above 0' if keyword == 'multipleOf' else ''}")
    if keyword in _COUNTS and not (_is_finite(value) and value >= 0 and value == int(value)):
        raise BadSchema(f"{where}: must be a whole number, not below 0")
    if keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise BadSchema(f"{where}: must be a list of names")
    if keyword == "enum" and not isinstance(value, list):
        raise BadSchema(f"{where}: must be a list")
    if keyword == "pattern":
        _check_pattern(value, where)
    if keyword == "properties" and not isinstance(value, dict):
        raise BadSchema(f"{where}: must be an object")
    if keyword in _LISTS and not (isinstance(value, list) and value):
        raise BadSchema(f"{where}: must be a list of schemas")


def _check_pattern(value: Any, where: str) -> None:
    try:
        re.compile(value)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise BadSchema(f"{where}: no regular expression: {error}") from error


def _inner(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    if keyword in _SCHEMAS or keyword == "additionalProperties":
        yield "", value
    elif keyword in _LISTS:
        yield from ((f"/{number}", inner) for number, inner in enumerate(value))
    elif keyword == "properties":
        yield from ((f"/{name}", inner) for name, inner in value.items())


def mismatch(value: Any, schema: Any, where: str = "the answer") -> str:
    """The first thing that is not as the schema wants it; empty where all is."""
    if isinstance(schema, bool):
        return "" if schema else f"{where}: nothing is allowed here"
    return next(_mismatches(value, schema, where), "")


def _mismatches(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from _wrong_type(value, schema, where)
    yield from _wrong_value(value, schema, where)
    if _is_number(value):
        yield from _wrong_number(value, schema, where)
    elif isinstance(value, str):
        yield from _wrong_count(len(value), schema, "Length", "characters", where)
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            yield f"{where}: does not match {schema['pattern']!r}"
    elif isinstance(value, list):
        yield from _wrong_count(len(value), schema, "Items", "items", where)
        if "items" in schema:
            yield from _first(mismatch(one, schema["items"], f"{where}[{at}]") for at, one in enumerate(value))
    elif isinstance(value, dict):
        yield from _wrong_object(value, schema, where)
    yield from _wrong_choice(value, schema, where)


def _wrong_type(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if "type" in schema:
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_of(value, kind) for kind in wanted):
            yield f"{where}: must be {' or '.join(wanted)}"


def _wrong_value(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where}: is not the constant that it must be"
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{where}: is none of the {len(schema['enum'])} allowed values"


def _wrong_number(value: float, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if "minimum" in schema and not value >= schema["minimum"]:
        yield f"{where}: must be at least {schema['minimum']}"
    if "maximum" in schema and not value <= schema["maximum"]:
        yield f"{where}: must be at most {schema['maximum']}"
    if "exclusiveMinimum" in schema and not value > schema["exclusiveMinimum"]:
        yield f"{where}: must be above {schema['exclusiveMinimum']}"
    if "exclusiveMaximum" in schema and not value < schema["exclusiveMaximum"]:
        yield f"{where}: must be below {schema['exclusiveMaximum']}"
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield f"{where}: must be a multiple of {schema['multipleOf']}"


def _wrong_count(count: int, schema: Mapping[str, Any], what: str, unit: str, where: str) -> Iterator[str]:
    if count < schema.get(f"min{what}", 0):
        yield f"{where}: must have at least {schema[f'min{what}']} {unit}"
    if count > schema.get(f"max{what}", count):
        yield f"{where}: must have at most {schema[f'max{what}']} {unit}"


def _wrong_object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from _wrong_count(len(value), schema, "Properties", "properties", where)
    yield from (f"{where}: lacks {name!r}" for name in schema.get("required", ()) if name not in value)
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for name, one in value.items():
        if name in known:
            yield from _first([mismatch(one, known[name], f"{where}.{name}")])
        elif others is False:
            yield f"{where}: {name!r} is not allowed"
        else:
            yield from _first([mismatch(one, others, f"{where}.{name}")])


def _wrong_choice(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from _first(mismatch(value, one, where) for one in schema.get("allOf", ()))
    if "anyOf" in schema and all(mismatch(value, one, where) for one in schema["anyOf"]):
        yield f"{where}: fits none of the {len(schema['anyOf'])} alternatives"
    if "oneOf" in schema and (count := sum(not mismatch(value, one, where) for one in schema["oneOf"])) != 1:
        yield f"{where}: fits {count} of the {len(schema['oneOf'])} alternatives, and must fit exactly one"
    if "not" in schema and not mismatch(value, schema["not"], where):
        yield f"{where}: is what it must not be"


def _first(troubles: "Iterator[str] | list[str]") -> Iterator[str]:
    yield from (trouble for trouble in troubles if trouble)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or isfinite(value))


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _is_multiple(value: float, of: float) -> bool:
    if isinstance(value, int) and isinstance(of, int):
        return value % of == 0
    try:
        quotient = value / of
    except OverflowError:
        return False
    return abs(quotient - round(quotient)) < 1e-9 if abs(quotient) < 1e300 else False


def _same(one: Any, other: Any) -> bool:
    """As JSON has it: 1 is 1.0, and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)
