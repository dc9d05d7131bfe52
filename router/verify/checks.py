"""Checks of Python syntax and of JSON. `main` runs in a child process and writes errors to standard output."""

import ast
import json
import os
import re
import resource
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from math import isfinite
from typing import Any, NoReturn

CHECK_MEMORY = 1 << 30
MOST_VALUE_DEPTH = 256
_TOO_DEEP = f"the answer is nested deeper than {MOST_VALUE_DEPTH} levels"
MOST_SCHEMA_DEPTH = 64
_MOST_DIGITS = 4000
_MOST_QUOTED = 100
_LARGEST = sys.float_info.max
_NOTEBOOK_LINE = re.compile(  # a notebook's `%magic` or `!shell` line
    r"^(?P<margin>[ \t]*)(?:[A-Za-z_][\w, \t]*=[ \t]*)?(?:%{1,2}[A-Za-z]|![^=\s]|![ \t]+\w)(?:[^\n]*\\\n)*[^\n]*",
    re.MULTILINE,
)
_CELL = re.compile(r"\s*%%(?P<magic>\w+)")
_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "python", "python3", "py", "memit", "mprun"})

_SCHEMA = {"type": ["object", "boolean"]}
_SCHEMAS = {"type": "array", "minItems": 1, "items": _SCHEMA}
_NUMBER = {"type": "number", "minimum": -_LARGEST, "maximum": _LARGEST}
_COUNT = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
_TYPE = {"enum": ["object", "array", "string", "number", "integer", "boolean", "null"]}
# The supported keywords and the values that each may have, as a JSON Schema. Without `$ref`, nothing is ever fetched.
_KEYWORDS: dict[str, Any] = {
    **dict.fromkeys(("$schema", "$comment", "title", "description", "default", "examples", "format", "const"), True),
    **dict.fromkeys(("items", "not", "additionalProperties"), _SCHEMA),
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _SCHEMAS),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    "$id": {"type": "string", "format": "uri"},
    "type": {"anyOf": [_TYPE, {"type": "array", "minItems": 1, "items": _TYPE}]},
    "multipleOf": {**_NUMBER, "exclusiveMinimum": 0},
    "required": {"type": "array", "items": {"type": "string"}},
    "enum": {"type": "array"},
    "pattern": {"type": "string", "format": "regex"},
    "properties": {"type": "object", "additionalProperties": _SCHEMA},
}


class BadSchema(ValueError):
    """The schema is invalid or has an unsupported keyword."""


def main() -> None:
    seconds, language = int(sys.argv[1]), sys.argv[2]
    os.nice(19)
    for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, CHECK_MEMORY), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))
    warnings.simplefilter("ignore")
    payload = json.load(sys.stdin)
    if language == "python":
        errors = [find_syntax_error(text) for text in payload["texts"]]
    else:
        errors = [find_json_error(text, payload["schema"]) for text in payload["texts"]]
    print(json.dumps(errors))


def find_syntax_error(source: str) -> str:
    """Return the error; "" if the source parses, as it is or without its notebook lines (`%magic`, `!shell`)."""
    error = _parse_error(source)
    plain = without_notebook_lines(source) if error else source
    return error if plain == source else _parse_error(plain)


def _parse_error(source: str) -> str:
    try:
        ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, UnicodeError) as error:
        return str(error)
    except (RecursionError, MemoryError):
        return "the answer is nested too deeply, or too large, to parse"
    return ""


def without_notebook_lines(code: str) -> str:
    """Replace notebook lines with `pass`, keeping all line numbers."""
    return _NOTEBOOK_LINE.sub(lambda found: f"{found['margin']}pass" + "\n" * found[0].count("\n"), code)


def is_foreign_cell(code: str) -> bool:
    """Whether the code is a notebook cell in another language, or has only notebook lines."""
    cell = _CELL.match(code)
    if cell is not None and cell["magic"] not in _PYTHON_CELLS:
        return True
    return _NOTEBOOK_LINE.search(code) is not None and not _NOTEBOOK_LINE.sub("", code).strip()


@cache
def _validators() -> tuple[Any, Any]:
    """Return the validator of schemas, and the class that validates values against a schema. jsonschema is imported
    only if needed, because the import takes longer than most checks."""
    from urllib.parse import urlsplit

    from jsonschema import Draft202012Validator, FormatChecker, ValidationError
    from jsonschema.validators import extend

    def check_multiple(validator: Any, divisor: float, value: Any, schema: Any) -> Iterator[ValidationError]:
        if validator.is_type(value, "number") and not _is_multiple(value, divisor):
            yield ValidationError(f"{value!r} is not a multiple of {divisor}")

    formats = FormatChecker(())
    formats.checks("regex", (re.error, OverflowError, RecursionError))(lambda value: re.compile(value) is not None)
    formats.checks("uri", ValueError)(lambda value: urlsplit(value) is not None)
    meta = {**_SCHEMA, "properties": _KEYWORDS, "additionalProperties": False}
    own = extend(Draft202012Validator, {"multipleOf": check_multiple})
    return Draft202012Validator(meta, format_checker=formats), own


def _is_multiple(value: float, divisor: float) -> bool:
    """Whether `value` is a multiple of `divisor`, with a tolerance that the library lacks: 0.3 is a multiple of 0.1."""
    if isinstance(value, int) and isinstance(divisor, int):
        return value % divisor == 0
    try:
        quotient = value / divisor
    except OverflowError:
        return False
    return abs(quotient - round(quotient)) < 1e-9 if abs(quotient) < 1e300 else False


def check_schema(schema: Any, where: str = "the schema", depth: int = 0) -> None:
    """Check a schema. Raises BadSchema, which names the place. Unsupported keywords are refused, never ignored."""
    if depth > MOST_SCHEMA_DEPTH:
        raise BadSchema(f"{where}: nested deeper than {MOST_SCHEMA_DEPTH} levels")
    for error in _validators()[0].iter_errors(schema):
        if error.validator == "additionalProperties" and not error.absolute_path:
            raise BadSchema(f"{where}: {error.message}; supported keywords: {', '.join(sorted(_KEYWORDS))}")
        raise BadSchema(f"{where}{error.json_path[1:]}: {error.message}")
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if _KEYWORDS[keyword] is _SCHEMA:
            check_schema(value, f"{where}.{keyword}", depth + 1)
        elif _KEYWORDS[keyword] is _SCHEMAS:
            for number, inner in enumerate(value):
                check_schema(inner, f"{where}.{keyword}[{number}]", depth + 1)
        elif keyword == "properties":
            for name, inner in value.items():
                check_schema(inner, f"{where}.properties.{name}", depth + 1)


def find_json_error(text: str, schema: Any) -> str:
    """Return the error; "" if the text is JSON and matches the schema."""
    try:
        value = json.loads(text, parse_constant=refuse_constant, parse_int=_parse_int, parse_float=_parse_float)
        return _TOO_DEEP if _is_deep(value) else find_mismatch(value, schema)
    except ValueError as error:
        return f"the answer is not JSON: {error}"
    except (RecursionError, MemoryError):
        return f"{_TOO_DEEP}, or too large"


def find_mismatch(value: Any, schema: Any) -> str:
    """Return the first violation of the schema; empty if there is none."""
    error = None if schema is True else next(_validators()[1](schema).iter_errors(value), None)
    if error is None:
        return ""
    rule = f"violates {error.validator} {json.dumps(error.validator_value)[:_MOST_QUOTED]}"
    if error.validator in ("required", "additionalProperties"):  # these messages name a key and quote no value
        rule = error.message
    return f"the answer{error.json_path[1:]}: {rule}" if error.validator else "the answer: the schema allows no value"


def refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _parse_int(digits: str) -> float:
    return int(digits) if len(digits) <= _MOST_DIGITS else _parse_float(digits)


def _parse_float(digits: str) -> float:
    if not isfinite(value := float(digits)):
        raise ValueError(f"the number {digits[:_MOST_QUOTED]} is too large")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_VALUE_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in level)
