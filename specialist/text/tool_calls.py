"""Tool calls: the dialects in which models write them, their grammar, and their parsing."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from octet.rpc.checks import refuse_constant
from specialist.text.prompt import ChatTurn, MessageToolCall, OfferedTool, ToolCallFragment, ToolOffer
from specialist.text.structured_output import json_schema_rule

# A conversation with a tool call. It shows whether a chat template supports calls, and how it writes them.
PROBE_TOOL = OfferedTool(
    "octet_probe", "Probe.", '{"type":"object","properties":{"octet_key":{"type":"string"}}}', False
)
PROBE_CALL = MessageToolCall("probe0000", "octet_probe", '{"octet_key":"octet_value"}')
PROBE_TURNS = (
    ChatTurn("user", "a"),
    ChatTurn("assistant", "", (PROBE_CALL,)),
    ChatTurn("tool", "octet_result", tool_call_id=PROBE_CALL.call_id),
)
SHOWN_TEXTS = ("octet_probe", "octet_key")  # from the offered tool
CALL_TEXTS = ("octet_result", "octet_value")  # from the call and its result
_PROBE_NAME = r'\{\s*"name"\s*:\s*"octet_probe"\s*,\s*'
_PROBE_ARGUMENTS = r'"\s*:\s*\{\s*"octet_key"\s*:\s*"octet_value"\s*\}'
BLANK = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ToolDialect:
    name: str
    begin: str  # the marker before calls; empty if an answer that begins like a call is a call
    end: str  # the marker after each call; may be empty
    key: str  # the key of a call's arguments
    is_list: bool = False  # whether all calls are one JSON list
    gap: str = "\n"  # the text between markers and JSON, and between calls

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (self.begin, self.end) if marker)

    @property
    def allows_one_call(self) -> bool:
        """Whether only one call can be written: without a marker, a second call cannot begin."""
        return not self.begin


HERMES = ToolDialect("hermes", "<tool_call>", "</tool_call>", "arguments")
MISTRAL = ToolDialect("mistral", "[TOOL_CALLS]", "", "arguments", is_list=True, gap="")
LLAMA = ToolDialect("llama", "", "", "parameters", gap="")
_RENDERED_PROBES = {
    HERMES: rf'<tool_call>\s*{_PROBE_NAME}"arguments{_PROBE_ARGUMENTS}\s*\}}\s*</tool_call>',
    MISTRAL: rf'\[TOOL_CALLS\]\s*\[\s*{_PROBE_NAME}"arguments{_PROBE_ARGUMENTS}',
    LLAMA: rf'{_PROBE_NAME}"parameters{_PROBE_ARGUMENTS}\s*\}}',
}


def detect_dialect(rendered: str) -> ToolDialect | None:
    """Return the dialect in which a chat template has rendered PROBE_CALL; None if it is unknown."""
    return next((dialect for dialect, probe in _RENDERED_PROBES.items() if re.search(probe, rendered)), None)


class ParsedText(NamedTuple):
    text: str = ""
    calls: tuple[ToolCallFragment, ...] = ()


class ParsedTextBuilder:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[ToolCallFragment] = []

    def build(self) -> ParsedText:
        return ParsedText("".join(self.texts), merge_call_parts(self.calls))


def merge_call_parts(fragments: Iterable[ToolCallFragment]) -> tuple[ToolCallFragment, ...]:
    """Join neighbouring fragments of the same call."""
    groups = [list(group) for _, group in groupby(fragments, attrgetter("index"))]
    return tuple(replace(group[0], arguments="".join(part.arguments for part in group)) for group in groups)


class JsonBrackets:
    """Finds the end of a JSON object or list, character by character: `depth` returns to 0 at its last bracket."""

    __slots__ = ("_escaped", "_quoted", "depth")

    def __init__(self) -> None:
        self.depth = 0  # number of open brackets
        self._quoted = False
        self._escaped = False

    def step(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped = character == "\\"
            self._quoted = character != '"'
        elif character == '"':
            self._quoted = True
        elif character in "[{":
            self.depth += 1
        elif character in "]}":
            self.depth -= 1


def parse_calls(text: str, dialect: ToolDialect, names: Collection[str]) -> list[tuple[str, str]] | None:
    """Return the name and the arguments of each call, as the model wrote them. Return None if the text is not a call,
    or calls a tool that was not offered."""
    try:
        json.loads(text, parse_constant=refuse_constant)
        calls = []
        for each in list(_elements(text)) if dialect.is_list else [text]:
            members = dict(_members(each))
            name, arguments = json.loads(members.get("name", "null")), members.get(dialect.key, "")
            if not isinstance(name, str) or name not in names or not arguments.startswith("{"):
                return None
            calls.append((name, arguments))
    except (ValueError, RecursionError):
        return None
    return calls or None


def _elements(text: str) -> Iterator[str]:
    at = _skip_mark(text, 0, "[")
    while text[at] != "]":
        value, after = _value(text, at)
        yield value
        at = _skip_mark(text, after, ",") if text[after] == "," else after


def _members(text: str) -> Iterator[tuple[str, str]]:
    at = _skip_mark(text, 0, "{")
    while text[at] != "}":
        key, after = _value(text, at)
        value, after = _value(text, _skip_mark(text, after, ":"))
        yield str(json.loads(key)), value
        at = _skip_mark(text, after, ",") if text[after] == "," else after


def _value(text: str, at: int) -> tuple[str, int]:
    _, end = _DECODER.raw_decode(text, at)
    return text[at:end], _skip_blanks(text, end)


def _skip_mark(text: str, at: int, mark: str) -> int:
    at = _skip_blanks(text, at)
    if text[at] != mark:
        raise ValueError(f"{mark} is missing")
    return _skip_blanks(text, at + 1)


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in BLANK:
        at += 1
    return at


_DECODER = json.JSONDecoder()
_TEXT = r"TEXT: /(.|\n)*/"
_TEXT_UNLIKE_A_CALL = r"TEXT: /([^{ \n\r\t]|[ \n\r\t]+[^{ \n\r\t])(.|\n)*/"  # `{` after whitespace begins a call


def tool_call_rules(
    offer: ToolOffer,
    dialect: ToolDialect,
    control: Mapping[str, int],
    depth: int,
    *,
    has_text: bool = False,
    beside_json: bool = False,
) -> str:
    """Return grammar rules for calls; the first is `calls`. With `has_text`, they also allow text, with or without
    calls. `beside_json` means that the answer may be JSON instead. `control` has the ids of those markers of the
    dialect that are control tokens. Raises InvalidValue for an invalid schema."""
    lines = [f"calls: {_calls_rule(offer, dialect, control, has_text=has_text)}"]
    lines += [f"call: {' | '.join(f'call_{index}' for index in range(len(offer.callable)))}"]
    for index, tool in enumerate(offer.callable):
        schema = _arguments_schema(tool, offer)
        if beside_json and not dialect.begin:  # a fixed text would exclude other JSON that begins alike
            lines += [f"call_{index}: {json_schema_rule(json.dumps(_call_schema(tool, dialect, schema)), depth)}"]
            continue
        before = json.dumps(f'{{"name": {json.dumps(tool.name)}, "{dialect.key}": ')
        lines += [f'call_{index}: {before} arguments_{index} "}}"']
        lines += [f"arguments_{index}: {json_schema_rule(json.dumps(schema), depth)}"]
    return "\n".join([*lines, *(_text_rules(dialect, control) if has_text else ())])


def _calls_rule(offer: ToolOffer, dialect: ToolDialect, control: Mapping[str, int], *, has_text: bool) -> str:
    once = offer.one_at_most or bool(offer.name) or dialect.allows_one_call
    if not dialect.begin:
        return "call | text" if has_text else "call"
    block = _block_rule(dialect, control, once)
    if has_text:
        return f"text | begun {block}" if once else f"(begun {block})* text"
    begin = _marker_rule(dialect.begin, control)
    if once or dialect.is_list:
        return f"{begin} {block}"
    return f"{begin} {block} ({json.dumps(dialect.gap)} {begin} {block})*"


def _block_rule(dialect: ToolDialect, control: Mapping[str, int], once: bool) -> str:
    if dialect.is_list:
        return '" "? "[" call "]"' if once else '" "? "[" call (", " call)* "]"'
    gap = json.dumps(dialect.gap)
    return f"{gap} call {gap} {_marker_rule(dialect.end, control)}"


def _text_rules(dialect: ToolDialect, control: Mapping[str, int]) -> Iterator[str]:
    if not dialect.begin:
        yield from ("text: TEXT?", _TEXT_UNLIKE_A_CALL)
        return
    lazy = "" if dialect.begin in control else "[lazy]"
    yield from ("text: TEXT", _TEXT, f"begun{lazy}: TEXT {_marker_rule(dialect.begin, control)}")


def _marker_rule(marker: str, control: Mapping[str, int]) -> str:
    return f"<[{control[marker]}]>" if marker in control else json.dumps(marker)


def _arguments_schema(tool: OfferedTool, offer: ToolOffer) -> dict[str, Any]:
    """Return the schema of the arguments: the tool's own only if the tool is strict or a call is required."""
    if not (tool.strict or offer.must_call):
        return {"type": "object"}
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **json.loads(tool.parameters)}


def _call_schema(tool: OfferedTool, dialect: ToolDialect, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a whole call. References within the arguments' schema point to its new place."""
    members = {"name": {"const": tool.name}, dialect.key: _move_references(arguments, f"#/properties/{dialect.key}")}
    return {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}


def _move_references(schema: Any, place: str) -> Any:
    if isinstance(schema, list):
        return [_move_references(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _move_references(value, place)
        for key, value in schema.items()
    }
