"""Requests to OpenAI's Responses API: the body, its input items, and the conversation that the items form."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from octet.limits import shorten
from octet.v1 import inference_pb2 as wire
from router.api.http import common_fields, fields
from router.api.http import openai_requests as openai
from router.api.http.completions import ApiRequest
from router.api.http.errors import invalid_field, missing_field
from router.api.http.fields import only, unsupported

_LOGPROBS = "message.output_text.logprobs"
_SESSION = "session_id"
_ITEM_ID = re.compile(r"(msg|fc|item)_([0-9a-f]{32})_[0-9]{1,6}")  # `item` for input, else output
_MAX_METADATA, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_FIELD_NAMES: Mapping[str, str] = {
    **openai.FIELD_NAMES,
    **dict.fromkeys(("messages", "messages.role", "prompt"), "input"),
    **dict.fromkeys(("messages.tool_calls.id", "messages.tool_call_id"), "input.call_id"),
    **{f"messages.tool_calls.{name}": f"input.{name}" for name in ("name", "arguments")},
    "messages.tool_calls": "input",
    "sampling.num_logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
}
_TEXT_ONLY = "the specialists read text only"
_OTHER_ITEMS = "the input may hold messages, function calls, their outputs, reasoning and references to items"
_OWN_TOOLS = "the router runs no tools of its own; offer functions, and run them yourself"
_NO_DROPPING = "no part of a conversation is dropped; an input that is too long is refused"
_FunctionType = Annotated[Literal["function"], unsupported(_OWN_TOOLS)]
_ROLES = "one of user, assistant, system, developer"


class ResponsePart(Struct):
    type: Annotated[Literal["input_text", "output_text", "text"], unsupported(_TEXT_ONLY)]
    text: Annotated[str, fields.never_missing("text")]
    annotations: list[Any] | UnsetType | None = UNSET


_Content = str | list[ResponsePart]


class ResponseItem(Struct, kw_only=True):
    id: str | None = None
    status: str | None = None


class MessageItem(ResponseItem, tag="message", kw_only=True):
    role: Annotated[Literal["user", "assistant", "system", "developer"], Meta(extra={"must_be": _ROLES})]
    content: _Content


class FunctionCallItem(ResponseItem, tag="function_call", kw_only=True):
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(ResponseItem, tag="function_call_output", kw_only=True):
    call_id: str
    output: _Content


class ReasoningItem(Struct, tag="reasoning"):
    """What a model thought before an earlier answer. It is ignored, as templates show no earlier thoughts."""


class ItemReference(Struct, tag="item_reference"):
    """The id of an output item of a stored response."""

    id: str


TurnItem = MessageItem | FunctionCallItem | FunctionOutputItem
InputItem = TurnItem | ReasoningItem | ItemReference


class ResponseTool(Struct):
    type: _FunctionType
    name: openai.ToolName
    description: str | None = None
    parameters: fields.JsonSchemaObject | None = None
    strict: bool | None = None

    def to_wire(self, where: str) -> wire.Tool:
        function = openai.ChatFunction(self.name, self.description, self.parameters, self.strict)
        return openai.make_tool(function, where)


class NamedFunction(Struct):
    type: Annotated[Literal["function"], unsupported("only a function can be named")]
    name: str


class TextFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: fields.JsonSchemaObject | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct):
    format: TextFormat | None = None
    verbosity: Any = None


class ResponseStreamOptions(Struct):
    include_obfuscation: Annotated[Any, only("chunks are not padded", False)] = None


_Included = Annotated[  # clients ask for encrypted reasoning by default; there is none
    Literal["message.output_text.logprobs", "reasoning.encrypted_content"], unsupported(_OWN_TOOLS)
]


class ResponsesRequest(openai.OpenAIOptions, kw_only=True):
    """A request. `reasoning`, `text.verbosity` and options of the prompt cache have no effect."""

    input: Annotated[
        str | Annotated[list[Annotated[InputItem, unsupported(_OTHER_ITEMS)]], fields.list_limits("messages", 1)],
        fields.never_missing("text or a list of items"),
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: Annotated[fields.Int64, fields.number_limits("max_tokens")] | None = None
    top_logprobs: openai.NumLogprobs | None = None
    include: list[_Included] | None = None
    tools: Annotated[list[ResponseTool], fields.list_limits("tools")] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, str | None] | None = None
    safety_identifier: common_fields.UserText | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Annotated[Any, only(_NO_DROPPING, "disabled")] = None
    service_tier: Annotated[Any, only("there is one tier; set octet.priority instead", "auto", "default")] = None
    background: Annotated[Any, only("submit background work to /v1/jobs", False)] = None
    conversation: Annotated[Any, only("continue a stored response with previous_response_id")] = None
    prompt: Annotated[Any, only("the router stores no prompt templates; send instructions and input")] = None
    context_management: Annotated[Any, only(_NO_DROPPING)] = None
    moderation: Annotated[Any, only("the router does not moderate")] = None
    max_tool_calls: Annotated[Any, only(_OWN_TOOLS)] = None
    max_tokens: Annotated[Any, only("its name here is max_output_tokens")] = None
    max_completion_tokens: Annotated[Any, only("its name here is max_output_tokens")] = None
    messages: Annotated[Any, only("its name here is input")] = None
    response_format: Annotated[Any, only("its name here is text.format")] = None
    n: Annotated[Any, only("a response has one answer", 1)] = None

    @property
    def include_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)


def read_responses_request(body: dict[str, Any]) -> ResponsesRequest:
    """Convert a body. Raises ApiError for the first field that is invalid or not supported."""
    items = body.get("input")
    if isinstance(items, list):
        body = {**body, "input": [_with_type(item) for item in items]}
    asked = fields.to_struct(body, ResponsesRequest)
    fields.check_supported(asked)
    openai.refuse_vllm_structure(body, "text.format")
    if asked.stream_options is not None:
        fields.check_supported(asked.stream_options, "stream_options")
    _check_metadata(asked.metadata or {})
    return asked


def _with_type(item: Any) -> Any:
    """Return the item with its type, which callers may leave out of messages and references."""
    if not isinstance(item, dict) or item.get("type") is not None:
        return item
    return {**item, "type": "item_reference" if set(item) <= {"id", "type"} else "message"}


def _check_metadata(metadata: Mapping[str, str | None]) -> None:
    if len(metadata) > _MAX_METADATA:
        raise invalid_field("metadata", f"an object with at most {_MAX_METADATA} keys", f"{len(metadata)} keys")
    for key, value in metadata.items():
        if len(key) > _MAX_KEY or len(value or "") > _MAX_VALUE:
            limit = f"an object with keys of at most {_MAX_KEY} characters and values of at most {_MAX_VALUE}"
            raise invalid_field("metadata", limit, f"{shorten(key)} with {len(value or '')} characters")


def input_items(asked: ResponsesRequest) -> Sequence[TurnItem | ItemReference]:
    """Return the input as items, without reasoning."""
    if isinstance(asked.input, str):
        return [MessageItem(role="user", content=asked.input)]
    return [item for item in asked.input if not isinstance(item, ReasoningItem)]


def referenced_response(item_id: str) -> str | None:
    """Return the id of the response that has this output item; None for an id that no output item has."""
    found = _ITEM_ID.fullmatch(item_id)
    return None if found is None or found[1] == "item" else f"resp_{found[2]}"


def session_key(asked: ResponsesRequest) -> str:
    """Return the key that the caller gives to the conversation; "" if it gives none."""
    own = asked.octet.session_id if asked.octet is not None else None
    return own or (asked.metadata or {}).get(_SESSION) or asked.prompt_cache_key or ""


def number_items(items: Sequence[TurnItem], response_id: str) -> list[TurnItem]:
    """Return the items as they are stored: all have ids that differ, a status and lists of parts."""
    numbered, prefix = [], response_id.replace("resp_", "item_", 1)
    taken: set[str] = set()
    for index, item in enumerate(items):
        is_own = _ITEM_ID.fullmatch(item.id or "") and item.id not in taken
        item_id = (item.id or "") if is_own else f"{prefix}_{index}"
        taken.add(item_id)
        changed: dict[str, Any] = {"id": item_id, "status": item.status or "completed"}
        if isinstance(item, MessageItem):
            is_answer = item.role == "assistant"
            kind: Any = "output_text" if is_answer else "input_text"
            changed["content"] = [ResponsePart(kind, _text(item.content), [] if is_answer else UNSET)]
        numbered.append(structs.replace(item, **changed))
    return numbered


def make_responses_request(
    asked: ResponsesRequest, request_id: str, items: Sequence[TurnItem], session: str = ""
) -> ApiRequest:
    """Build the request. `items` are the whole conversation, and `session` is its key."""
    model = common_fields.ModelName.parse(asked.model)
    request = wire.InferRequest(
        request_id=request_id,
        messages=_conversation(asked.instructions, items),
        tools=[each.to_wire(f"tools[{index}]") for index, each in enumerate(asked.tools or ())],
        tool_choice=openai.make_tool_choice(
            asked.tool_choice.name if isinstance(asked.tool_choice, NamedFunction) else None,
            None if isinstance(asked.tool_choice, NamedFunction) else asked.tool_choice,
            asked.parallel_tool_calls,
            has_tools=bool(asked.tools),
        ),
        sampling=openai.make_sampling(asked),
        seed=asked.seed,
        max_tokens=asked.max_output_tokens,
        min_tokens=asked.min_tokens,
        ignore_eos=bool(asked.ignore_eos),
        stop=[asked.stop] if isinstance(asked.stop, str) else asked.stop,
        structure=_structure(asked),
        metadata={_SESSION: session} if session else {},
        user_id=asked.safety_identifier or asked.user or "",
    )
    if asked.include_logprobs:
        request.sampling.num_logprobs = asked.top_logprobs or 0
    request.MergeFrom(common_fields.octet_request(model, asked.octet))
    return ApiRequest(
        model=model,
        requests=(request,),
        field_names=lambda: _field_names(asked, model),
        is_chat=True,
        stream=bool(asked.stream),
        include_receipt=bool(asked.octet and asked.octet.receipt),
        include_logprobs=asked.include_logprobs,
    )


def _field_names(asked: ResponsesRequest, model: common_fields.ModelName) -> Mapping[str, str]:
    has_session = (asked.metadata or {}).get(_SESSION)
    session = "prompt_cache_key" if asked.prompt_cache_key is not None and not has_session else "metadata.session_id"
    names = {**common_fields.octet_field_names(model, common_fields.OctetOptions), **_FIELD_NAMES}
    names |= {"metadata": session, "metadata.value": session}
    if asked.safety_identifier:
        names["user_id"] = "safety_identifier"
    if asked.octet is None or asked.octet.structure is None:
        names |= {name: "text.format" for name in names if name.startswith("structure")} | {"structure": "text.format"}
    return names


def _structure(asked: ResponsesRequest) -> wire.Structure | None:
    form = asked.text.format if asked.text is not None else None
    if form is None or form.type == "text":
        return None
    if asked.octet is not None and asked.octet.structure is not None:
        raise invalid_field("text.format", "left out if octet.structure is given", "both")
    if form.type == "json_object":
        return wire.Structure(json_object=True)
    if form.schema is None:
        raise missing_field("text.format.schema")
    return wire.Structure(json_schema=fields.dump_json(form.schema, "text.format.schema"))


def _conversation(instructions: str | None, items: Sequence[TurnItem]) -> Iterator[wire.Message]:
    """Yield the messages. A turn of the assistant, which is several items here, is one message in chat templates."""
    if instructions:
        yield wire.Message(role="system", content=instructions)
    answer: wire.Message | None = None  # the assistant's turn, while more items may belong to it
    for item in items:
        is_called = isinstance(item, FunctionCallItem)
        is_text = isinstance(item, MessageItem) and item.role == "assistant"
        if answer is not None and not is_called and not (is_text and answer.tool_calls):
            yield answer
            answer = None
        match item:
            case FunctionCallItem(status="incomplete"):
                pass  # the answer was cut off within the call, so its arguments are not JSON
            case FunctionCallItem():
                answer = answer or wire.Message(role="assistant")
                answer.tool_calls.add(id=item.call_id, name=item.name, arguments=item.arguments or "{}")
            case FunctionOutputItem():
                yield wire.Message(role="tool", content=_text(item.output), tool_call_id=item.call_id)
            case MessageItem(role="assistant"):
                answer = answer or wire.Message(role="assistant")
                answer.content += _text(item.content)
            case MessageItem(role=role):
                yield wire.Message(role="system" if role == "developer" else role, content=_text(item.content))
    if answer is not None:
        yield answer


def _text(content: _Content) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
