"""Anthropic's dialect: messages, their stream events, and token counts."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from octet.limits import shorten
from octet.rpc.checks import TOOL_NAME_PATTERN
from octet.v1 import inference_pb2 as wire
from router.api.http import common_fields, completions, errors, fields
from router.api.http.body import BodyReader
from router.api.http.completions import AnswerChoice, ApiRequest
from router.api.http.connection import get_trace_headers, named_event, run_while_connected
from router.api.http.fields import Int64, number_limits, only, unsupported
from router.serving import RequestServer

ANTHROPIC_VERSION = "anthropic-version"  # a header that only Anthropic's clients send
_MAX_MODELS = 1000  # on one page, as in Anthropic's API
_MAX_TEMPERATURE = 1.0
_TEXT_SEPARATOR = "\n"
_ERROR_PREFIX = "Error: "  # marks the result of a failed tool: chat templates have no field for it
_Choice = wire.ToolChoice
_TOOL_MODES = {"auto": _Choice.AUTO, "any": _Choice.REQUIRED, "tool": _Choice.REQUIRED, "none": _Choice.NONE}
_FIELD_NAMES: Mapping[str, str] = {
    **{f"sampling.{name}": name for name in ("temperature", "top_k", "top_p")},
    **{"prompt": "messages", "messages.role": "messages", "stop": "stop_sequences", "user_id": "metadata.user_id"},
    **{"tools.parameters": "tools.input_schema", "tool_choice.mode": "tool_choice.type"},
    **{"messages.tool_calls": "messages.content", "messages.tool_calls.id": "messages.content.id"},
    "messages.tool_calls.name": "messages.content.name",
    "messages.tool_calls.arguments": "messages.content.input",
    "messages.tool_call_id": "messages.content.tool_use_id",
}
_FORMAT_NAMES = {"structure": "output_config.format", "structure.json_schema": "output_config.format.schema"}
_STOP_REASONS = {wire.FINISH_REASON_STOP: "end_turn", wire.FINISH_REASON_LENGTH: "max_tokens"}
_OTHER_BLOCKS = "the specialists read only text, an assistant's tool_use and a user's tool_result"
_ONE_TIER = "there is one tier; set octet.priority instead"
_NO_THINKING = "the specialists answer without a separate thinking part"
_ONLY_MODELS_CALL = "only the model itself can call tools"


class CacheControlled(Struct, forbid_unknown_fields=True, kw_only=True):
    """An object that may have `cache_control`, which has no effect: prefixes are always cached."""

    cache_control: dict[str, Any] | None = None


class TextContent(CacheControlled, tag="text", kw_only=True):
    text: str
    citations: list[Any] | None = None


class ToolUseContent(CacheControlled, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None


class ToolResultContent(CacheControlled, tag="tool_result", kw_only=True):
    tool_use_id: str
    content: "_Content | None" = None
    is_error: bool | None = None


_Block = TextContent | ToolUseContent | ToolResultContent
_Content = str | list[Annotated[_Block, unsupported(_OTHER_BLOCKS)]]


class AnthropicTurn(CacheControlled, kw_only=True):
    role: Annotated[Literal["user", "assistant", "system"], Meta(extra={"must_be": "one of user, assistant, system"})]
    content: _Content


class AnthropicTool(CacheControlled, kw_only=True):
    """A tool. Its input is always streamed as it is generated, so `eager_input_streaming` has no effect."""

    type: Annotated[Literal["custom"] | None, unsupported("only the caller's own tools are supported")] = None
    input_schema: dict[str, Any]
    name: Annotated[str, Meta(extra_json_schema={"pattern": f"^{TOOL_NAME_PATTERN}$"})]
    description: str | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[Any] | None = None


class AnthropicToolChoice(CacheControlled, kw_only=True):
    type: Annotated[Literal["auto", "any", "tool", "none"], Meta(extra={"must_be": f"one of {', '.join(_TOOL_MODES)}"})]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(CacheControlled, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(CacheControlled, kw_only=True):
    format: OutputFormat | None = None
    effort: str | None = None  # no effect: the specialists answer without a separate thinking part


class AnthropicMetadata(CacheControlled, kw_only=True):
    user_id: common_fields.UserText | None = None


class AnthropicOctetOptions(common_fields.OctetOptions):
    seed: Int64 | None = None


class CountRequest(CacheControlled, kw_only=True):
    model: common_fields.ModelField
    messages: Annotated[list[AnthropicTurn], common_fields.MESSAGES, fields.list_limits("messages")]
    system: _Content | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: OutputConfig | None = None
    octet: AnthropicOctetOptions | None = None
    thinking: Annotated[Any, only(_NO_THINKING, {"type": "disabled"})] = None
    service_tier: Annotated[Any, only(_ONE_TIER, "auto", "standard_only")] = None
    speed: Annotated[Any, only(_ONE_TIER, "standard")] = None
    container: Annotated[Any, only("the router executes no code")] = None
    mcp_servers: Annotated[Any, only("the router calls no MCP servers", [])] = None
    context_management: Annotated[Any, only("the router does not edit the conversation")] = None
    diagnostics: Annotated[Any, only("set octet.receipt to see how a request was served")] = None
    inference_geo: Annotated[Any, only("there is only one location")] = None
    user_profile_id: Annotated[Any, only("the router keeps no profiles; set metadata.user_id to name the user")] = None
    workspace_id: Annotated[Any, only("there are no workspaces")] = None


class MessageRequest(CountRequest, kw_only=True):
    max_tokens: Annotated[Int64, number_limits("max_tokens")]
    stream: bool | None = None
    stop_sequences: common_fields.StopTexts | None = None
    temperature: Annotated[float, number_limits("sampling.temperature", most=_MAX_TEMPERATURE)] | None = None
    top_k: Annotated[Int64, number_limits("sampling.top_k")] | None = None
    top_p: Annotated[float, number_limits("sampling.top_p")] | None = None
    metadata: AnthropicMetadata | None = None


def parse_message_request(body: dict[str, Any], request_id: str) -> ApiRequest:
    asked = fields.to_struct(body, MessageRequest)
    answer = wire.InferRequest(
        max_tokens=asked.max_tokens,
        stop=asked.stop_sequences,
        sampling=_sampling(asked),
        user_id=asked.metadata.user_id if asked.metadata else None,
    )
    return _api_request(asked, request_id, answer, stream=bool(asked.stream))


def parse_count_request(body: dict[str, Any], request_id: str) -> ApiRequest:
    return _api_request(fields.to_struct(body, CountRequest), request_id, wire.InferRequest(), stream=False)


def _api_request(asked: CountRequest, request_id: str, answer: wire.InferRequest, *, stream: bool) -> ApiRequest:
    """Build the request. `answer` holds the fields that affect only the answer; it is empty for a token count."""
    fields.check_supported(asked)
    model = common_fields.ModelName.parse(asked.model)
    options = common_fields.octet_request(model, asked.octet)
    structure = _structure(asked.output_config)
    if structure is not None and options.HasField("structure"):
        raise errors.invalid_field("output_config.format", "left out if octet.structure is given", "both")
    request = wire.InferRequest(
        request_id=request_id,
        messages=_conversation(asked),
        tools=[_tool(each, f"tools[{index}]") for index, each in enumerate(asked.tools or ())],
        tool_choice=_tool_choice(asked),
        structure=structure,
    )
    request.MergeFrom(options)
    request.MergeFrom(answer)
    names = {**_FIELD_NAMES, **({} if structure is None else _FORMAT_NAMES)}
    return ApiRequest(
        model=model,
        requests=(request,),
        field_names=lambda: common_fields.octet_field_names(model, AnthropicOctetOptions) | names,
        is_chat=True,
        stream=stream,
        include_receipt=bool(asked.octet and asked.octet.receipt),
    )


def _conversation(asked: CountRequest) -> list[wire.Message]:
    system = _text(asked.system or "", "system")
    turns = [wire.Message(role="system", content=system)] if system else []
    for index, turn in enumerate(asked.messages):
        for message in _messages(turn, f"messages[{index}].content"):
            _append_turn(turns, message)
    if turns[-1].role == "assistant":
        why = "messages must not end with an assistant's message, because answers are not continued"
        raise errors.ApiError(400, why, param="messages", code="unsupported_parameter")
    return turns


def _append_turn(turns: list[wire.Message], turn: wire.Message) -> None:
    """Append a turn, or merge it with the last turn if both have the same role. Tool results are never merged, and
    nothing is merged into a turn that calls tools."""
    last = turns[-1] if turns else None
    if last is None or last.role != turn.role or turn.role == "tool" or last.tool_calls:
        turns.append(turn)
        return
    last.content = _TEXT_SEPARATOR.join(text for text in (last.content, turn.content) if text)
    last.tool_calls.extend(turn.tool_calls)


def _messages(turn: AnthropicTurn, where: str) -> Iterator[wire.Message]:
    """Yield the messages of a turn. A user's text and tool results become separate messages. An assistant's text comes
    before its tool calls, because chat templates support no other order."""
    if isinstance(turn.content, str) or turn.role == "system" or not turn.content:
        yield wire.Message(role=turn.role, content=_text(turn.content, where))
        return
    answer = wire.Message(role="assistant")
    texts = []
    for index, block in enumerate(turn.content):
        place = f"{where}[{index}]"
        if isinstance(block, ToolResultContent) and turn.role == "user":
            result = (_ERROR_PREFIX if block.is_error else "") + _text(block.content or "", f"{place}.content")
            yield wire.Message(role="tool", content=result, tool_call_id=block.tool_use_id)
        elif isinstance(block, ToolUseContent) and turn.role == "assistant":
            answer.tool_calls.append(_tool_call(block, place))
        elif turn.role == "user":
            yield wire.Message(role="user", content=_block_text(block, place))
        else:
            texts.append(_block_text(block, place))
    if turn.role == "assistant":
        answer.content = _TEXT_SEPARATOR.join(texts)
        yield answer


def _tool_call(block: ToolUseContent, where: str) -> wire.ToolCall:
    if (block.caller or {}).get("type") not in (None, "direct"):
        raise errors.unsupported_field(f"{where}.caller", _ONLY_MODELS_CALL)
    return wire.ToolCall(id=block.id, name=block.name, arguments=fields.dump_json(block.input or {}, f"{where}.input"))


def _text(content: str | Sequence[_Block], where: str) -> str:
    if isinstance(content, str):
        return content
    return _TEXT_SEPARATOR.join(_block_text(block, f"{where}[{index}]") for index, block in enumerate(content))


def _block_text(block: _Block, where: str) -> str:
    """Return the text of a block. Raises ApiError if the block is not plain text."""
    if not isinstance(block, TextContent):
        misplaced = f"a {block.__struct_config__.tag} block is not accepted here"
        raise errors.unsupported_field(f"{where}.type", f"{misplaced}; {_OTHER_BLOCKS}")
    if block.citations:
        raise errors.unsupported_field(f"{where}.citations", "specialists do not support citations")
    return block.text


def _sampling(asked: MessageRequest) -> wire.Sampling | None:
    """Return the sampling fields; None if the request sets none: then the task's defaults apply."""
    temperature = asked.temperature
    if temperature is not None and not 0 <= temperature <= _MAX_TEMPERATURE:
        raise errors.invalid_field("temperature", f"in [0, {_MAX_TEMPERATURE:g}]", f"{temperature:g}")
    if temperature is None and asked.top_k is None and asked.top_p is None:
        return None
    return wire.Sampling(temperature=temperature, top_k=asked.top_k, top_p=asked.top_p)


def _structure(config: OutputConfig | None) -> wire.Structure | None:
    if config is None:
        return None
    fields.check_supported(config, "output_config")
    if config.format is None:
        return None
    return wire.Structure(json_schema=fields.dump_json(config.format.schema, "output_config.format.schema"))


def _tool(tool: AnthropicTool, where: str) -> wire.Tool:
    if tool.defer_loading:
        raise errors.unsupported_field(f"{where}.defer_loading", "a model sees all tools at once")
    if any(caller != "direct" for caller in tool.allowed_callers or ()):
        raise errors.unsupported_field(f"{where}.allowed_callers", _ONLY_MODELS_CALL)
    if tool.input_examples:
        why = "chat templates show only the schema; put examples in the description"
        raise errors.unsupported_field(f"{where}.input_examples", why)
    parameters = fields.dump_json(tool.input_schema, f"{where}.input_schema")
    return wire.Tool(name=tool.name, description=tool.description, parameters=parameters, strict=tool.strict)


def _tool_choice(asked: CountRequest) -> wire.ToolChoice | None:
    """Return the tool choice; None if it is not set, or if it is "none" and there are no tools."""
    choice = asked.tool_choice
    if choice is None:
        return None
    if choice.type != "tool" and choice.name is not None:
        raise errors.invalid_field("tool_choice.name", "left out unless the type is tool", shorten(choice.name))
    if not asked.tools:
        if choice.type == "none":
            return None
        raise errors.invalid_field("tool_choice", "left out if there are no tools", choice.type)
    if choice.type == "tool" and choice.name is None:
        raise errors.missing_field("tool_choice.name")
    one_at_most = choice.disable_parallel_tool_use
    return wire.ToolChoice(mode=_TOOL_MODES[choice.type], name=choice.name, one_at_most=one_at_most)


class AnthropicAnswerToolUse(Struct, tag="tool_use", forbid_unknown_fields=True):
    id: str
    name: str
    input: dict[str, Any]


class AnthropicUsage(Struct, forbid_unknown_fields=True):
    """The tokens of a message. `cache_creation_input_tokens` is always 0, because caching is automatic."""

    input_tokens: fields.Count
    cache_read_input_tokens: fields.Count
    output_tokens: fields.Count
    cache_creation_input_tokens: fields.Count = 0

    @classmethod
    def from_wire(cls, usage: wire.Usage) -> "AnthropicUsage":
        cached = usage.cache_hit_tokens
        return cls(usage.prompt_tokens - cached, cached, usage.completion_tokens)


class AnthropicMessage(Struct, tag="message", forbid_unknown_fields=True, kw_only=True):
    id: str
    role: Literal["assistant"] = "assistant"
    model: common_fields.ModelField
    content: list[errors.AnthropicAnswerText | AnthropicAnswerToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: AnthropicUsage
    octet: completions.OctetReceipts | UnsetType = UNSET


class InputTokenCount(Struct, forbid_unknown_fields=True):
    input_tokens: fields.Count


class AnthropicModel(Struct, tag="model", forbid_unknown_fields=True):
    """A model. Its `created_at` is the time at which the router started."""

    id: common_fields.ModelField
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"

    @classmethod
    def create(cls, name: str, created: int) -> "AnthropicModel":
        """`created` is in seconds since 1970."""
        return cls(name, name, f"{datetime.fromtimestamp(created, UTC):%Y-%m-%dT%H:%M:%SZ}")


class AnthropicModelList(Struct, forbid_unknown_fields=True):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def list_anthropic_models(names: Sequence[str], created: int, query: Mapping[str, str]) -> AnthropicModelList:
    """Return one page of models: `limit` of them, after `after_id` or before `before_id`. Raises ApiError."""
    limit = fields.parse_whole_number("limit", query.get("limit", str(_MAX_MODELS)))
    if not 1 <= limit <= _MAX_MODELS:
        raise errors.invalid_field("limit", f"in [1, {_MAX_MODELS:,}]", str(limit))
    first, last = 0, len(names)
    for key in ("after_id", "before_id"):
        name = query.get(key)
        if name is not None and name not in names:
            raise errors.invalid_field(key, "the id of a model", shorten(name))
    if "after_id" in query:
        first = names.index(query["after_id"]) + 1
    if "before_id" in query:
        last = names.index(query["before_id"])
        first = max(first, last - limit) if "after_id" not in query else first
    page = names[first:last][:limit]
    has_more = first > 0 if "before_id" in query else first + len(page) < last
    ends = (page[0], page[-1]) if page else (None, None)
    return AnthropicModelList([AnthropicModel.create(name, created) for name in page], has_more, *ends)


class AnthropicWriter:
    """A ResponseWriter for a request with one choice. Messages have no creation time, so `created` is ignored."""

    def __init__(self, request: ApiRequest, choices: Sequence[AnswerChoice], request_id: str, created: int) -> None:
        self._request = request
        self._choices = choices
        (self._choice,) = choices
        self._request_id = request_id
        self._blocks = completions.ContentBlocks(keep_text=False)
        self._open: completions.ContentBlock | None = None  # the block whose stop event is not sent yet
        self._has_started = False

    def complete(self) -> AnthropicMessage:
        usage = self._choice.final_receipt.usage
        blocks = self._choice.blocks
        return AnthropicMessage(
            id=f"msg_{self._request_id}",
            model=self._request.model.answered_by(self._choice.specialist),
            content=[content for block in blocks if (content := _content(block)) is not None],
            **_stop(usage, blocks),
            usage=AnthropicUsage.from_wire(usage),
            octet=completions.summarize_receipts(self._choices) if self._request.include_receipt else UNSET,
        )

    def write_event(self, choice: AnswerChoice, event: wire.InferEvent) -> bytes:
        if event.HasField("chunk"):
            parts = b"".join(self._write_part(block, text) for block, text in self._blocks.add(event.chunk))
            return self._start() + parts if parts else b""
        if event.HasField("receipt"):
            return self._start() + self._stop_block() + self._stop_message(event.receipt.usage)
        return b""

    def end(self) -> bytes:
        return _event("message_stop")

    def fail(self, error: errors.ApiError) -> bytes:
        return named_event("error", error.anthropic_envelope(self._request_id))

    def _start(self) -> bytes:
        """Return the `message_start` event; b"" after the first call. The number of cached tokens is not known yet."""
        if self._has_started:
            return b""
        self._has_started = True
        receipt = self._choice.receipt
        message: dict[str, Any] = {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._request.model.answered_by(self._choice.specialist),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0 if receipt is None else receipt.accepted.prompt_tokens, "output_tokens": 0},
        }
        return _event("message_start", message=message)

    def _write_part(self, block: completions.ContentBlock, text: str) -> bytes:
        start = b""
        if self._open is not block:
            empty = (
                errors.AnthropicAnswerText("") if block.is_text else AnthropicAnswerToolUse(block.id, block.name, {})
            )
            start = self._stop_block() + _event("content_block_start", index=block.index, content_block=empty)
            self._open = block
        if not text:
            return start
        kind, key = ("text_delta", "text") if block.is_text else ("input_json_delta", "partial_json")
        return start + _event("content_block_delta", index=block.index, delta={"type": kind, key: text})

    def _stop_block(self) -> bytes:
        if self._open is None:
            return b""
        index, self._open = self._open.index, None
        return _event("content_block_stop", index=index)

    def _stop_message(self, usage: wire.Usage) -> bytes:
        octet = {"octet": completions.summarize_receipts(self._choices)} if self._request.include_receipt else {}
        stop = _stop(usage, self._blocks)
        return _event("message_delta", delta=stop, usage=AnthropicUsage.from_wire(usage), **octet)


def _event(name: str, **content: Any) -> bytes:
    return named_event(name, {"type": name, **content})


def _stop(usage: wire.Usage, blocks: completions.ContentBlocks) -> dict[str, Any]:
    """Return the stop fields of an answer. Raises KeyError if the answer failed."""
    if usage.HasField("stop_string"):
        return {"stop_reason": "stop_sequence", "stop_sequence": usage.stop_string}
    reason = _STOP_REASONS[usage.finish_reason]
    calls_tools = reason == "end_turn" and blocks.has_complete_call
    return {"stop_reason": "tool_use" if calls_tools else reason, "stop_sequence": None}


def _content(block: completions.ContentBlock) -> errors.AnthropicAnswerText | AnthropicAnswerToolUse | None:
    """Return the block's content; None for a truncated tool call, which the caller must not execute."""
    if block.is_text:
        return errors.AnthropicAnswerText(block.content)
    return None if block.input is None else AnthropicAnswerToolUse(block.id, block.name, block.input)


async def count_tokens(service: RequestServer, bodies: BodyReader, scope: Scope, receive: Receive, send: Send) -> None:
    """POST /v1/messages/count_tokens."""
    connection = Request(scope, receive)
    request = parse_count_request(await bodies.read_object(connection), scope["request_id"])
    with completions.refusals_as_errors(request, ()):
        work = service.count(request.requests[0], None, get_trace_headers(connection))
        counted = await run_while_connected(receive, work)
    headers = {"x-octet-specialist": counted.specialist}
    await errors.JsonResponse(InputTokenCount(counted.prompt_tokens), headers=headers)(scope, receive, send)
