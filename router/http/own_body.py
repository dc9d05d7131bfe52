"""A body in Octet's own words: the fields of an InferRequest, with those of its sampling beside them."""

from collections.abc import Callable, Mapping
from typing import Any

from octet.rpc.refusal import shorten
from octet.sdk.tools import MODES
from octet.v1 import inference_pb2 as wire
from router.http.fault import Fault, wrong
from router.http.fields import Fields, text_of
from router.http.structure import schema_text, structure_of

_TEXTS = ("prompt", "template", "body", "intent", "session_id", "user_id")
_LISTS = ("force_specialists", "exclude_specialists", "adapters", "stop")
_INTEGERS = (
    *("max_experts", "seed", "max_tokens", "min_tokens", "context_size", "priority"),
    *("timeout_ms", "first_token_timeout_ms"),
)
_FLAGS = ("ignore_eos", "validate")
_SAMPLING_INTEGERS = ("top_k", "num_logprobs")
_SAMPLING_NUMBERS = (
    *("temperature", "top_p", "min_p", "typical_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
_SAMPLING = (*_SAMPLING_INTEGERS, *_SAMPLING_NUMBERS)
_SHAPED = ("messages", "tools", "tool_choice", "structure", "metadata")
FIELDS = (*_TEXTS, *_LISTS, *_INTEGERS, *_FLAGS, *_SAMPLING, *_SHAPED)
NAMES: Mapping[str, str] = {f"sampling.{name}": name for name in _SAMPLING}
"""What the fields of an InferRequest are called here."""


def request_of(body: Mapping[str, Any], *more: str) -> wire.InferRequest:
    """`more` are fields that somebody else reads. Raises Fault."""
    fields = Fields(body)
    only(fields, (*FIELDS, *more))
    request = wire.InferRequest()
    for name in _TEXTS:
        setattr(request, name, fields.text(name) or "")
    for name in _LISTS:
        getattr(request, name).extend(_several(fields, name))
    for name in _INTEGERS:
        if fields.has(name):
            setattr(request, name, fields.integer(name))
    for name in _FLAGS:
        setattr(request, name, fields.flag(name))
    for name in _SAMPLING:
        if fields.has(name):
            read = fields.integer if name in _SAMPLING_INTEGERS else fields.number
            setattr(request.sampling, name, read(name))
    for key in fields.table("metadata").given():
        request.metadata[text_of(key, "metadata")] = fields.table("metadata").needed_text(key)
    _conversation(request, fields)
    form = structure_of(fields)
    if form is not None:
        request.structure.CopyFrom(form)
    return request


def only(fields: Fields, known: tuple[str, ...]) -> None:
    """Raises Fault for the first field that is not known."""
    for key in fields.given():
        if key not in known:
            name = fields.name(key[:60])
            raise Fault(400, f"{name} is no field of this request", param=name, code="unknown_field")


def _several(fields: Fields, name: str) -> list[str]:
    return [fields.needed_text(name)] if isinstance(fields.raw(name), str) else fields.texts(name)


def _conversation(request: wire.InferRequest, fields: Fields) -> None:
    request.messages.extend(_each(fields, "messages", _message))
    request.tools.extend(_each(fields, "tools", _tool))
    if fields.has("tool_choice"):
        request.tool_choice.CopyFrom(_tool_choice(fields))


def _each(fields: Fields, name: str, read: Callable[[Fields], Any]) -> list[Any]:
    found = []
    for index, value in enumerate(fields.items(name)):
        where = f"{fields.name(name)}[{index}]"
        if not isinstance(value, dict):
            raise wrong(where, "an object", shorten(value))
        found.append(read(Fields(value, where)))
    return found


def _message(fields: Fields) -> wire.Message:
    only(fields, ("role", "content", "tool_calls", "tool_call_id"))
    calls = _each(fields, "tool_calls", _tool_call)
    content = fields.text("content") if calls else fields.needed_text("content")
    return wire.Message(
        role=fields.needed_text("role"), content=content, tool_calls=calls, tool_call_id=fields.text("tool_call_id")
    )


def _tool_call(fields: Fields) -> wire.ToolCall:
    only(fields, ("id", "name", "arguments"))
    texts = {name: fields.needed_text(name) for name in ("id", "name", "arguments")}
    return wire.ToolCall(**texts)


def _tool(fields: Fields) -> wire.Tool:
    only(fields, ("name", "description", "parameters", "strict"))
    return wire.Tool(
        name=fields.needed_text("name"),
        description=fields.text("description"),
        parameters=schema_text(fields, "parameters") if fields.has("parameters") else "",
        strict=fields.flag("strict"),
    )


def _tool_choice(fields: Fields) -> wire.ToolChoice:
    value = fields.raw("tool_choice")
    if isinstance(value, dict):
        named = fields.table("tool_choice")
        only(named, ("name",))
        return wire.ToolChoice(name=named.needed_text("name"))
    if not isinstance(value, str) or value not in MODES:
        raise wrong("tool_choice", f'one of {", ".join(MODES)}, or {{"name": ...}}', shorten(value))
    return wire.ToolChoice(mode=MODES[value])
