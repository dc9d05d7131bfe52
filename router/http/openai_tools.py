"""Tools and their calls, as OpenAI's dialect asks for them."""

import json
from typing import Any

from octet.rpc.refusal import shorten
from octet.sdk.tools import MODES
from octet.v1 import inference_pb2 as wire
from router.http.fault import unsupported, wrong
from router.http.fields import Fields
from router.http.structure import schema_text

NAMES = {
    "tools": "tools",
    "tools.name": "tools.function.name",
    "tools.description": "tools.function.description",
    "tools.parameters": "tools.function.parameters",
    "tool_choice.name": "tool_choice.function.name",
    "messages.tool_calls": "messages.tool_calls",
    "messages.tool_calls.name": "messages.tool_calls.function.name",
    "messages.tool_calls.arguments": "messages.tool_calls.function.arguments",
}
"""By the name on Octet's wire."""


def tools_of(fields: Fields) -> list[wire.Tool]:
    """Raises Fault."""
    return [_tool(each, f"tools[{index}]") for index, each in enumerate(fields.items("tools"))]


def choice_of(fields: Fields) -> wire.ToolChoice | None:
    """None where the caller says nothing. Raises Fault."""
    asked = fields.raw("tool_choice")
    parallel = fields.flag("parallel_tool_calls") or not fields.has("parallel_tool_calls")
    if asked is None and not parallel and not fields.items("tools"):
        raise wrong("parallel_tool_calls", "left out where there are no tools", "false")
    if asked is None:
        return None if parallel else wire.ToolChoice(one_at_most=True)
    if isinstance(asked, str):
        if asked not in MODES:
            raise wrong("tool_choice", f"one of {', '.join(MODES)}, or an object that names a function", shorten(asked))
        return wire.ToolChoice(mode=MODES[asked], one_at_most=not parallel)
    choice = fields.table("tool_choice")
    _only_functions(choice)
    return wire.ToolChoice(name=choice.table("function").needed_text("name"), one_at_most=not parallel)


def calls_of(fields: Fields) -> list[wire.ToolCall]:
    """Of a message. Raises Fault."""
    where = fields.name("tool_calls")
    return [_call(each, f"{where}[{index}]") for index, each in enumerate(fields.items("tool_calls"))]


def _tool(value: Any, where: str) -> wire.Tool:
    fields = _object(value, where)
    _only_functions(fields)
    function = fields.table("function")
    return wire.Tool(
        name=function.needed_text("name"),
        description=function.text("description") or "",
        parameters=schema_text(function, "parameters") if function.has("parameters") else "",
        strict=function.flag("strict"),
    )


def _call(value: Any, where: str) -> wire.ToolCall:
    fields = _object(value, where)
    _only_functions(fields)
    function = fields.table("function")
    arguments = function.needed_text("arguments") or json.dumps({})
    return wire.ToolCall(id=fields.needed_text("id"), name=function.needed_text("name"), arguments=arguments)


def _only_functions(fields: Fields) -> None:
    kind = fields.needed_text("type")
    if kind in ("custom", "allowed_tools"):
        raise unsupported(fields.name("type"), f"tools are functions, not {kind}")
    if kind != "function":
        raise wrong(fields.name("type"), "function", shorten(kind))


def _object(value: Any, where: str) -> Fields:
    if not isinstance(value, dict):
        raise wrong(where, "an object with type and function", shorten(value))
    return Fields(value, where)
