"""Tools in Anthropic's words: what a model may call, and whether it must."""

from collections.abc import Mapping
from typing import Any

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.anthropic_fields import check_keys, object_at
from router.http.fault import Fault, unsupported, wrong
from router.http.fields import Fields, json_text

_TOOL_KEYS = (
    "name",
    "description",
    "input_schema",
    "strict",
    "type",
    "allowed_callers",
    "defer_loading",
    "eager_input_streaming",
    "input_examples",
)
NAMES: Mapping[str, str] = {
    "tools.parameters": "tools.input_schema",
    "tool_choice.mode": "tool_choice.type",
    "messages.tool_calls": "messages.content",
    "messages.tool_calls.id": "messages.content.id",
    "messages.tool_calls.name": "messages.content.name",
    "messages.tool_calls.arguments": "messages.content.input",
    "messages.tool_call_id": "messages.content.tool_use_id",
}
"""By the name on Octet's wire."""
_MODES: Mapping[str, wire.ToolChoice.Mode] = {
    "auto": wire.ToolChoice.AUTO,
    "any": wire.ToolChoice.REQUIRED,
    "tool": wire.ToolChoice.REQUIRED,
    "none": wire.ToolChoice.NONE,
}


def tools_of(fields: Fields) -> list[wire.Tool]:
    """Raises Fault."""
    return [_tool(each, f"tools[{index}]") for index, each in enumerate(fields.items("tools"))]


def tool_choice_of(fields: Fields) -> wire.ToolChoice | None:
    """None where nothing is said of it. Raises Fault."""
    if not fields.has("tool_choice"):
        return None
    choice = fields.table("tool_choice")
    check_keys(choice, ("type", "name", "disable_parallel_tool_use"))
    mode = choice.needed_text("type")
    if mode not in _MODES:
        raise wrong(choice.name("type"), f"one of {', '.join(_MODES)}", shorten(mode))
    if choice.has("name") and mode != "tool":
        raise wrong(choice.name("name"), "left out unless the type is tool", shorten(choice.raw("name")))
    if not fields.items("tools"):
        if mode == "none":
            return None
        raise wrong("tool_choice", "left out without tools", mode)
    name = choice.needed_text("name") if mode == "tool" else ""
    return wire.ToolChoice(mode=_MODES[mode], name=name, one_at_most=choice.flag("disable_parallel_tool_use"))


def _tool(value: Any, where: str) -> wire.Tool:
    fields = object_at(value, where)
    kind = fields.text("type")
    if kind not in (None, "custom"):
        raise unsupported(fields.name("type"), f"there are no tools here but the caller's own, got {shorten(kind)}")
    check_keys(fields, _TOOL_KEYS)
    _check_asks_nothing_else(fields)
    if not fields.has("input_schema"):
        raise _missing(fields.name("input_schema"))
    return wire.Tool(
        name=fields.needed_text("name"),
        description=fields.text("description") or "",
        parameters=json_text(fields.table("input_schema").values(), fields.name("input_schema")),
        strict=fields.flag("strict"),
    )


def _check_asks_nothing_else(fields: Fields) -> None:
    """That input comes as it is written is what `eager_input_streaming` asks for, and what is done anyway."""
    fields.flag("eager_input_streaming")
    if fields.flag("defer_loading"):
        raise unsupported(fields.name("defer_loading"), "a model is shown all tools at once")
    if any(caller != "direct" for caller in fields.texts("allowed_callers")):
        raise unsupported(fields.name("allowed_callers"), "tools are called by models alone")
    if fields.items("input_examples"):
        raise unsupported(fields.name("input_examples"), "templates show a schema; write examples in the description")


def _missing(name: str) -> Fault:
    return Fault(400, f"{name} is missing", param=name, code="missing_field")
