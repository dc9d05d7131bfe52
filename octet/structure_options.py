"""The form of an answer, as options of a command."""

import argparse
import json
from typing import Any

from octet.sdk.structure import Choice, Json, Regex, Structure
from octet.text_io import STANDARD_INPUT, check_text, text_of

_NAMES = ("json_object", "json_schema", "regex", "choice")


def add_structure(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the answer must look like; one of these")
    group.add_argument("--json-object", action="store_true", help="any JSON object")
    group.add_argument("--json-schema", metavar="FILE", help="JSON that this schema describes; - for standard input")
    group.add_argument("--regex", metavar="PATTERN", help="text that it matches as a whole")
    group.add_argument("--choice", action="append", default=[], metavar="TEXT", help="one of these; repeatable")


def check_structure(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    given = [name for name in _NAMES if getattr(arguments, name) not in (None, False, [])]
    if len(given) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in given[:2])
        parser.error(f"{second} beside {first}: an answer has one form")
    if arguments.json_schema == STANDARD_INPUT and (arguments.prompt is None or arguments.body == STANDARD_INPUT):
        parser.error("--json-schema - takes standard input: give the prompt and the body otherwise")


def structure_from(arguments: argparse.Namespace) -> Structure | None:
    """None where nothing is asked for. Raises ValueError, OSError."""
    for name in ("regex", "choice"):
        check_text(name, getattr(arguments, name))
    if arguments.json_object:
        return Json()
    if arguments.json_schema is not None:
        return Json(_schema(arguments.json_schema))
    if arguments.regex is not None:
        return Regex(arguments.regex)
    return Choice(*arguments.choice) if arguments.choice else None


def _schema(source: str) -> dict[str, Any]:
    try:
        schema = json.loads(text_of(source))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"--json-schema {source} is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ValueError(f"--json-schema {source} must hold a JSON object, got {type(schema).__name__}")
    return schema
