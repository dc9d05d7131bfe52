"""Checks of values that callers send."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from math import isfinite
from typing import Any, NoReturn

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from octet.limits import Range, shorten
from octet.rpc.refusal import invalid_field, prompt_too_large
from octet.v1 import specialist_pb2 as wire

ASSISTANT, TOOL = "assistant", "tool"
MAX_JSON_DEPTH = 64  # maximum levels of nesting in a schema or in the arguments of a call
MAX_TOOL_NAME = 128  # characters, the maximum that any vendor's clients may send
TOOL_NAME_PATTERN = rf"[a-zA-Z0-9_-]{{1,{MAX_TOOL_NAME}}}"
_TOOL_NAME = re.compile(TOOL_NAME_PATTERN)
_NAME = re.compile(r"[a-z0-9._-]+")
_ROLE = re.compile(r"[a-z_]+")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FLOAT_TYPES = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
_BRACKET = re.compile(r"[\[{\]}]")
_PROMPT_FIELDS = ("prompt", "template", "body", "text")  # parts of a prompt: too large means too long for a context


class InvalidValue(ValueError):
    """A value is invalid. The error message states what the value must be, and what it is."""

    def __init__(self, limit: str, value: str) -> None:
        super().__init__(f"must be {limit}, got {value}")
        self.limit = limit
        self.value = value


def parse_json_object(text: str, max_depth: int) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidValue if the text is not one, or is nested deeper than `max_depth` levels."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(_JSON_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > max_depth:
        raise InvalidValue(f"nested at most {max_depth} levels deep", f"{deepest:,} levels")
    try:
        parsed = json.loads(text, parse_constant=refuse_constant)
    except ValueError as error:
        raise InvalidValue("valid JSON", f"a parse error: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidValue("a JSON object", type(parsed).__name__)
    return parsed


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which `json.loads` would accept."""
    raise ValueError(f"{name} is not JSON")


class FieldChecks:
    """Checks single fields by their names on the wire. A failed check raises Refusal with field, limit and value."""

    def __init__(self, ranges: Mapping[str, Range], sizes: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """`sizes` are the maximum bytes of strings, `counts` the maximum items of lists."""
        self._ranges = ranges
        self._sizes = sizes
        self._counts = counts

    def in_range(self, field: str, value: float) -> float:
        allowed = self._ranges[field]
        if value not in allowed:
            raise invalid_field(field, str(allowed), str(value))
        return value

    def size(self, field: str, raw: bytes) -> bytes:
        most = self._sizes[field]
        if len(raw) > most:
            got = f"{len(raw):,} bytes"
            if field in _PROMPT_FIELDS:
                raise prompt_too_large(field, most, got)
            raise invalid_field(field, f"at most {most:,} bytes", got)
        return raw

    def text(self, field: str, text: str) -> str:
        if text:
            self.size(field, text.encode())
        return text

    def count(self, field: str, values: Sized) -> None:
        most = self._counts[field]
        if len(values) > most:
            raise invalid_field(field, f"at most {most:,} items", f"{len(values):,} items")

    def identifier(self, field: str, text: str) -> str:
        """Check an identifier. Identifiers are logged, so they must not contain line breaks or control characters."""
        if not self.text(field, text).isprintable():
            raise invalid_field(field, "printable", shorten(text))
        return text

    def name(self, field: str, name: str) -> str:
        if not _NAME.fullmatch(self.text(field, name)):
            raise invalid_field(field, "made of lowercase letters, digits, dots, dashes and underscores", shorten(name))
        return name

    def names(self, field: str, names: Sequence[str]) -> tuple[str, ...]:
        if not names:
            return ()
        self.count(field, names)
        check_unique(field, "names", names)
        return tuple(self.name(field, name) for name in names)

    def role(self, field: str, role: str) -> str:
        if not _ROLE.fullmatch(self.text(field, role)):
            raise invalid_field(field, "made of lowercase letters and underscores", shorten(role))
        return role

    def stops(self, stops: Sequence[str]) -> tuple[str, ...]:
        self._texts("stop", stops)
        return tuple(stops)

    def structure(self, structure: wire.Structure) -> None:
        """Check sizes and counts only; the replica decides whether it can compile the structure."""
        kind = structure.WhichOneof("kind")
        if kind is None:
            raise invalid_field("structure", "one of json_object, json_schema, regex and choice", "none of them")
        if kind == "choice":
            self._choices(structure.choice.choices)
        elif not getattr(structure, kind):
            limit, value = ("true", "false") if kind == "json_object" else ("non-empty", "''")
            raise invalid_field(f"structure.{kind}", limit, value)
        elif kind != "json_object":
            self.text(f"structure.{kind}", getattr(structure, kind))

    def _choices(self, choices: Sequence[str]) -> None:
        field = "structure.choice.choices"
        if not choices:
            raise invalid_field(field, "non-empty", "an empty list")
        self._texts(field, choices)
        check_unique(field, "choices", choices)
        self.size("structure.choice", "".join(choices).encode())

    def _texts(self, field: str, texts: Sequence[str]) -> None:
        self.count(field, texts)
        for text in texts:
            if not self.text(field, text):
                raise invalid_field(field, "non-empty", "''")


class ToolChecks:
    """Checks tools, and tool calls in a conversation. A failed check raises Refusal with field, limit and value."""

    def __init__(self, checks: FieldChecks, prefix: str = "") -> None:
        """`prefix` precedes the names of fields in error messages."""
        self._checks = checks
        self._tools = f"{prefix}tools"
        self._choice = f"{prefix}tool_choice"
        self._messages = f"{prefix}messages"

    def tools(self, tools: Sequence[wire.Tool]) -> None:
        self._checks.count(self._tools, tools)
        for tool in tools:
            self._name(f"{self._tools}.name", tool.name)
            self._checks.text(f"{self._tools}.description", tool.description)
            self._schema(f"{self._tools}.parameters", tool.parameters)
        check_unique(f"{self._tools}.name", "names", [tool.name for tool in tools])
        texts = (text for tool in tools for text in (tool.name, tool.description, tool.parameters))
        self._checks.size(self._tools, "".join(texts).encode())

    def choice(self, choice: wire.ToolChoice, tools: Sequence[wire.Tool]) -> None:
        if not tools:
            raise invalid_field(self._choice, "unset if there are no tools", "a tool choice")
        if choice.mode not in choice.Mode.values():
            raise invalid_field(f"{self._choice}.mode", "one of AUTO, NONE and REQUIRED", str(choice.mode))
        if choice.name and choice.name not in (tool.name for tool in tools):
            raise invalid_field(f"{self._choice}.name", "the name of one of the tools", shorten(choice.name))

    def conversation(self, messages: Sequence[wire.Message]) -> None:
        """Check that only an assistant makes calls, and every tool message answers exactly one earlier call."""
        open_ids: set[str] = set()
        ids: list[str] = []
        for message in messages:
            if message.tool_calls and message.role != ASSISTANT:
                limit = "unset unless the role is assistant"
                raise invalid_field(f"{self._messages}.tool_calls", limit, f"the role {shorten(message.role)}")
            if bool(message.tool_call_id) != (message.role == TOOL):
                limit = "set if the role is tool, and unset otherwise"
                value = f"{shorten(message.tool_call_id)} in the role {shorten(message.role)}"
                raise invalid_field(f"{self._messages}.tool_call_id", limit, value)
            if message.role == TOOL and message.tool_call_id not in open_ids:
                limit = "the id of an earlier unanswered call"
                raise invalid_field(f"{self._messages}.tool_call_id", limit, shorten(message.tool_call_id))
            open_ids.discard(message.tool_call_id)
            self._calls(message.tool_calls)
            new_ids = [call.id for call in message.tool_calls]
            ids += new_ids
            open_ids.update(new_ids)
        check_unique(f"{self._messages}.tool_calls.id", "ids", ids)

    def _calls(self, calls: Sequence[wire.ToolCall]) -> None:
        field = f"{self._messages}.tool_calls"
        self._checks.count(field, calls)
        for call in calls:
            self._name(f"{field}.name", call.name)
            if not self._checks.identifier(f"{field}.id", call.id):
                raise invalid_field(f"{field}.id", "non-empty", "''")
            self._object(f"{field}.arguments", self._checks.text(f"{field}.arguments", call.arguments))

    def _name(self, field: str, name: str) -> None:
        if not _TOOL_NAME.fullmatch(name):
            raise invalid_field(field, f"1 to {MAX_TOOL_NAME} letters, digits, dashes and underscores", shorten(name))

    def _schema(self, field: str, schema: str) -> None:
        """Check a tool's schema; it is empty for a tool without arguments. The replica checks whether it compiles."""
        if not self._checks.text(field, schema):
            return
        kind = self._object(field, schema).get("type", "object")
        if kind != "object":
            raise invalid_field(field, "a schema of type object", shorten(kind))

    def _object(self, field: str, text: str) -> dict[str, object]:
        try:
            return parse_json_object(text, MAX_JSON_DEPTH)
        except InvalidValue as error:
            raise invalid_field(field, error.limit, error.value) from None


def check_unique(field: str, noun: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        duplicate = next(value for value, count in Counter(values).items() if count > 1)
        raise invalid_field(field, f"free of duplicate {noun}", f"{shorten(duplicate)} more than once")


def message_texts(message: wire.Message) -> tuple[str, ...]:
    return (message.content, *(call.name + call.arguments for call in message.tool_calls))


def has_finite_numbers(message: Message) -> bool:
    """Whether all numbers of the message and its nested messages are finite. NaN can pass range checks, and JSON has
    neither NaN nor infinity. The message must have no map fields."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            is_finite = all(map(has_finite_numbers, value)) if field.is_repeated else has_finite_numbers(value)
        elif field.cpp_type in _FLOAT_TYPES:
            is_finite = all(map(isfinite, value)) if field.is_repeated else isfinite(value)
        else:
            continue
        if not is_finite:
            return False
    return True
