"""`POST /v1/chat/completions`: from its body to an order."""

from collections.abc import Mapping
from typing import Any

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.fault import unsupported, wrong
from router.http.fields import Fields, text_of
from router.http.openai_options import Options
from router.http.openai_tools import NAMES, calls_of, choice_of, tools_of
from router.http.openai_unsupported import check_chat, check_message
from router.http.order import Order
from router.http.structure import response_format_of

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OTHER_PARTS = ("image_url", "input_audio", "file", "refusal")
_NAMES = {"prompt": "messages", "messages.role": "messages", "sampling.num_logprobs": "top_logprobs"}
_GAP = "\n"
"""Between the parts of one message."""


def chat_order(body: dict[str, Any], request_id: str) -> Order:
    """Raises Fault."""
    fields = Fields(body)
    options = Options(fields)
    check_chat(fields)
    prompt = wire.InferRequest(
        messages=[_message(each, index) for index, each in enumerate(fields.items("messages"))],
        tools=tools_of(fields),
        tool_choice=choice_of(fields),
    )
    if not prompt.messages:
        raise wrong("messages", "a list of at least one message", shorten(fields.raw("messages")))
    logprobs = _num_logprobs(fields)
    if logprobs is not None:
        prompt.sampling.num_logprobs = logprobs
    form = response_format_of(fields)
    if form is not None:
        if options.has_structure:
            raise wrong("response_format", "left out beside octet.structure", "both")
        prompt.structure.CopyFrom(form)
    return Order(
        model=options.model,
        requests=tuple(options.requests(request_id, [prompt])),
        num_each=options.n,
        names=lambda: _names(options, has_form=form is not None),
        is_chat=True,
        stream=options.stream,
        include_usage=options.include_usage,
        receipt=options.receipt,
        logprobs=logprobs is not None,
    )


def _names(options: Options, *, has_form: bool) -> Mapping[str, str]:
    """By the name on Octet's wire."""
    names = {**options.names(), **NAMES, **_NAMES}
    return names | {name: "response_format" for name in names if has_form and name.startswith("structure")}


def _num_logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs")
    if fields.flag("logprobs"):
        return top or 0
    if top is not None:
        raise wrong("top_logprobs", "left out unless logprobs is true", str(top))
    return None


def _message(value: Any, index: int) -> wire.Message:
    where = f"messages[{index}]"
    if not isinstance(value, dict):
        raise wrong(where, "an object with role and content", shorten(value))
    fields = Fields(value, where)
    role = fields.needed_text("role")
    if role == "function":
        raise unsupported(f"{where}.role", "what a tool says is a message of the role tool")
    if role not in _ROLES:
        raise wrong(f"{where}.role", f"one of {', '.join(_ROLES)}", shorten(role))
    check_message(fields, role)
    return wire.Message(
        role=_ROLES[role],
        content=_content(fields),
        tool_calls=calls_of(fields),
        tool_call_id=fields.text("tool_call_id") or "",
    )


def _content(fields: Fields) -> str:
    """Nothing where an assistant has called tools and said nothing."""
    if fields.has("tool_calls") and not fields.has("content"):
        return ""
    if not isinstance(fields.raw("content"), list):
        return fields.needed_text("content")
    where = fields.name("content")
    return _GAP.join(_part(part, f"{where}[{index}]") for index, part in enumerate(fields.items("content")))


def _part(value: Any, where: str) -> str:
    if not isinstance(value, dict):
        raise wrong(where, "an object with type and text", shorten(value))
    fields = Fields(value, where)
    kind = fields.needed_text("type")
    if kind in _OTHER_PARTS:
        raise unsupported(f"{where}.type", f"the specialists read text alone, not {kind}")
    if kind != "text":
        raise wrong(f"{where}.type", "text", shorten(kind))
    return text_of(fields.raw("text"), f"{where}.text")
