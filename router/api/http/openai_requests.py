"""OpenAI request bodies: chat completions and completions."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from octet.client.options import TOOL_MODES
from octet.limits import shorten
from octet.rpc.checks import TOOL_NAME_PATTERN
from octet.v1 import inference_pb2 as wire
from router.api.http import common_fields, fields
from router.api.http.completions import ApiRequest
from router.api.http.errors import invalid_field, missing_field, unsupported_field
from router.api.http.fields import Int64, number_limits, only, unsupported

MAX_CHOICES = 8
_INT64 = 2**63
_VLLM_KEEP_ALL = -1  # the `top_k` of vLLM that keeps every token
_SAMPLING = (  # OpenAI's names, and vLLM's where OpenAI has none
    *("temperature", "top_p", "presence_penalty", "frequency_penalty"),
    *("min_p", "repetition_penalty", "top_k"),
)
FIELD_NAMES: Mapping[str, str] = {
    **{f"sampling.{name}": name for name in _SAMPLING},
    **{f"sampling.{name}": "logit_bias" for name in ("logit_bias", "logit_bias.token", "logit_bias.bias")},
    "user_id": "user",
}
_CHAT_FIELD_NAMES: Mapping[str, str] = {
    "prompt": "messages",
    "messages.role": "messages",
    "sampling.num_logprobs": "top_logprobs",
    **{f"tools.{name}": f"tools.function.{name}" for name in ("name", "description", "parameters")},
    "tool_choice.name": "tool_choice.function.name",
    **{f"messages.tool_calls.{name}": f"messages.tool_calls.function.{name}" for name in ("name", "arguments")},
}
_FUNCTIONS_ARE_TOOLS = only("offer functions as tools, and use tool_choice and tool_calls")
_ROLES = "one of system, developer, user, assistant, tool"
_TEXT_ONLY = "the specialists read and write text only"
FunctionType = Annotated[Literal["function"], unsupported("only functions are supported", "custom", "allowed_tools")]
_Bias = Annotated[float, number_limits("sampling.logit_bias.bias")]
ToolName = Annotated[str, Meta(extra_json_schema={"pattern": f"^{TOOL_NAME_PATTERN}$"})]
NumLogprobs = Annotated[Int64, number_limits("sampling.num_logprobs")]
_Prompt = Annotated[str, fields.text_limits("prompt", 1)]
_TokenId = Annotated[str, Meta(pattern=r"^[0-9]{1,18}$", extra={"must_be": "an object whose keys are token ids"})]


class OpenAIMetadata(Struct):
    session_id: str | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class OpenAIOptions(common_fields.GenerationOptions, kw_only=True):
    """Options that all requests of OpenAI's dialect have."""

    model: common_fields.ModelField
    top_p: Annotated[float, number_limits("sampling.top_p", open=False)] | None = None
    top_k: Annotated[Int64, number_limits("sampling.top_k", least=_VLLM_KEEP_ALL)] | None = None
    logit_bias: dict[_TokenId, _Bias | None] | None = None
    stream: bool | None = None
    user: common_fields.UserText | None = None
    prompt_cache_key: common_fields.IdText | None = None
    octet: common_fields.OctetOptions | None = None


class OpenAIRequest(OpenAIOptions, kw_only=True):
    max_completion_tokens: Annotated[Int64, number_limits("max_tokens")] | None = None
    n: Annotated[Int64, Meta(extra_json_schema={fields.RANGE_KEY: {"minimum": 1, "maximum": MAX_CHOICES}})] | None = (
        None
    )
    stream_options: StreamOptions | None = None
    metadata: OpenAIMetadata | None = None
    store: bool | None = None  # no effect: answers are never stored for later calls of this API


class TextPart(Struct):
    type: Annotated[
        Literal["text"],
        unsupported("the specialists read text only", "image_url", "input_audio", "file", "refusal"),
    ]
    text: Annotated[str, fields.never_missing("text")]


class ChatFunctionCall(Struct):
    name: str
    arguments: str


class ChatToolCall(Struct):
    type: FunctionType
    id: str
    function: ChatFunctionCall


class OpenAIMessage(Struct):
    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        unsupported("a tool's result must be a message with the role tool", "function", must_be=_ROLES),
    ]
    content: str | list[TextPart] | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None  # no effect: chat templates do not show participants' names
    function_call: Annotated[Any, _FUNCTIONS_ARE_TOOLS] = None
    audio: Annotated[Any, only(_TEXT_ONLY)] = None
    refusal: Annotated[Any, only("write a refusal as the message's content")] = None


class ChatFunction(Struct):
    name: ToolName
    description: str | None = None
    parameters: fields.JsonSchemaObject | None = None
    strict: bool | None = None


class ChatTool(Struct):
    type: FunctionType
    function: ChatFunction


class ResponseSchema(Struct):
    name: str
    schema: fields.JsonSchemaObject | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: ResponseSchema | None = None


class ChatRequest(OpenAIRequest, kw_only=True):
    messages: Annotated[list[OpenAIMessage], common_fields.MESSAGES, fields.list_limits("messages")]
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    tools: list[ChatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChatTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    functions: Annotated[Any, _FUNCTIONS_ARE_TOOLS] = None
    function_call: Annotated[Any, _FUNCTIONS_ARE_TOOLS] = None
    modalities: Annotated[Any, only(_TEXT_ONLY, ["text"])] = None
    audio: Annotated[Any, only(_TEXT_ONLY)] = None
    prediction: Annotated[Any, only("drafts of an answer are not used")] = None
    reasoning_effort: str | None = None  # no effect: the specialists answer without a separate reasoning part
    verbosity: str | None = None  # no effect: max_completion_tokens and the prompt set an answer's length
    web_search_options: Annotated[Any, only("the specialists do not search the web")] = None
    service_tier: Annotated[Any, only("there is one tier; set octet.priority instead", "auto", "default")] = None


class CompletionRequest(OpenAIRequest, kw_only=True):
    prompt: _Prompt | Annotated[list[_Prompt], Meta(min_length=1, extra_json_schema={"maxItems": MAX_CHOICES})]
    logprobs: NumLogprobs | None = None
    best_of: Int64 | None = None
    suffix: Annotated[Any, only("the specialists do not fill gaps in text")] = None
    echo: Annotated[Any, only("the prompt is not repeated", False)] = None


def parse_chat_request(body: dict[str, Any], request_id: str) -> ApiRequest:
    chat = fields.to_struct(body, ChatRequest)
    prompt = wire.InferRequest(
        messages=[_message(each, f"messages[{index}]") for index, each in enumerate(chat.messages)],
        tools=[make_tool(each.function, f"tools[{index}].function") for index, each in enumerate(chat.tools or ())],
        tool_choice=make_tool_choice(
            chat.tool_choice.function.name if isinstance(chat.tool_choice, ChatTool) else None,
            None if isinstance(chat.tool_choice, ChatTool) else chat.tool_choice,
            chat.parallel_tool_calls,
            has_tools=bool(chat.tools),
        ),
    )
    if chat.logprobs:
        prompt.sampling.num_logprobs = chat.top_logprobs or 0
    elif chat.top_logprobs is not None:
        raise invalid_field("top_logprobs", "left out unless logprobs is true", str(chat.top_logprobs))
    structure = _structure(chat.response_format)
    if structure is not None:
        if chat.octet is not None and chat.octet.structure is not None:
            raise invalid_field("response_format", "left out if octet.structure is given", "both")
        prompt.structure.CopyFrom(structure)
    return _api_request(body, chat, request_id, [prompt], bool(chat.logprobs))


def parse_completion_request(body: dict[str, Any], request_id: str) -> ApiRequest:
    """Parse a completion request. Its prompt becomes a user message, because specialists accept only chats."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and any(isinstance(each, int | list) for each in prompt):
        why = "it holds token ids, which belong to one model; the router needs the text to choose a model"
        raise unsupported_field("prompt", why)
    completion = fields.to_struct(body, CompletionRequest)
    num_choices = _num_choices(completion)
    if completion.best_of is not None and completion.best_of != num_choices:
        raise unsupported_field("best_of", "every choice is returned; set n instead")
    texts = [completion.prompt] if isinstance(completion.prompt, str) else completion.prompt
    if len(texts) * num_choices > MAX_CHOICES:
        limit = f"a list of at most {MAX_CHOICES // num_choices} prompts when n is {num_choices}"
        raise invalid_field("prompt", limit, f"{len(texts)} prompts")
    num_logprobs = completion.logprobs
    sampling = None if num_logprobs is None else wire.Sampling(num_logprobs=num_logprobs)
    prompts = [wire.InferRequest(prompt=text, sampling=sampling) for text in texts]
    return _api_request(body, completion, request_id, prompts, num_logprobs is not None)


def _api_request(
    raw: Mapping[str, Any], body: OpenAIRequest, request_id: str, prompts: list[wire.InferRequest], logprobs: bool
) -> ApiRequest:
    """Build one request for each choice. `prompts` holds one request for each prompt, to be copied for its choices."""
    fields.check_supported(body)
    refuse_vllm_structure(raw, "response_format")
    model = common_fields.ModelName.parse(body.model)
    options = _options(body, model)
    num_choices = _num_choices(body)
    return ApiRequest(
        model=model,
        requests=tuple(_choices(request_id, prompts, options, num_choices)),
        field_names=lambda: _field_names(body, model),
        is_chat=isinstance(body, ChatRequest),
        choices_per_prompt=num_choices,
        stream=bool(body.stream),
        include_usage=_include_usage(body),
        include_receipt=bool(body.octet and body.octet.receipt),
        include_logprobs=logprobs,
    )


def refuse_vllm_structure(raw: Mapping[str, Any], instead: str) -> None:
    """Raises ApiError for vLLM's fields for structured output: ignoring them would return an unstructured answer."""
    for key, value in raw.items():
        if value is not None and (key == "structured_outputs" or key.startswith("guided_")):
            raise unsupported_field(key[:60], f"set the form of an answer in {instead} or octet.structure")


def _choices(
    request_id: str, prompts: list[wire.InferRequest], options: wire.InferRequest, num_choices: int
) -> Iterator[wire.InferRequest]:
    for index in range(len(prompts) * num_choices):
        request = prompts[index // num_choices]
        if num_choices > 1:
            request = wire.InferRequest()
            request.CopyFrom(prompts[index // num_choices])
        request.MergeFrom(options)
        request.request_id = f"{request_id}-{index}" if index else request_id
        if request.HasField("seed"):
            request.seed = (request.seed + index + _INT64) % (2 * _INT64) - _INT64
        yield request


def _options(body: OpenAIRequest, model: common_fields.ModelName) -> wire.InferRequest:
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid_field("max_tokens", "left out if max_completion_tokens is given", "both")
    session = (body.metadata and body.metadata.session_id) or body.prompt_cache_key
    request = wire.InferRequest(
        sampling=make_sampling(body),
        seed=body.seed,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        min_tokens=body.min_tokens,
        ignore_eos=bool(body.ignore_eos),
        stop=[body.stop] if isinstance(body.stop, str) else body.stop,
        metadata={"session_id": session} if session else {},
        user_id=body.user or "",
    )
    request.MergeFrom(common_fields.octet_request(model, body.octet))
    return request


def _field_names(body: OpenAIRequest, model: common_fields.ModelName) -> Mapping[str, str]:
    has_session = body.metadata is not None and body.metadata.session_id
    session = "prompt_cache_key" if body.prompt_cache_key is not None and not has_session else "metadata.session_id"
    names = {
        **common_fields.octet_field_names(model, common_fields.OctetOptions),
        **FIELD_NAMES,
        "max_tokens": "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        "metadata": session,
        "metadata.value": session,
        "sampling.num_logprobs": "logprobs",
    }
    if isinstance(body, ChatRequest):
        names |= _CHAT_FIELD_NAMES
        if body.response_format is not None and body.response_format.type != "text":
            names |= {name: "response_format" for name in names if name.startswith("structure")}
    return names


def make_sampling(body: OpenAIOptions) -> wire.Sampling | None:
    """Return the sampling fields; None if the request sets none: then the task's defaults apply."""
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    biases = (body.logit_bias or {}).items()
    logit_bias = [wire.LogitBias(token=int(token), bias=bias) for token, bias in biases if bias is not None]
    if not given and not logit_bias:
        return None
    if given.get("top_p") == 0:  # OpenAI's way to ask for the likeliest token
        del given["top_p"]
        given["temperature"] = 0.0
    if given.get("top_k") == _VLLM_KEEP_ALL:
        given["top_k"] = 0
    return wire.Sampling(**given, logit_bias=logit_bias)


def _num_choices(body: OpenAIRequest) -> int:
    if body.n is not None and not 1 <= body.n <= MAX_CHOICES:
        raise invalid_field("n", f"in [1, {MAX_CHOICES}]", str(body.n))
    return body.n or 1


def _include_usage(body: OpenAIRequest) -> bool:
    options = body.stream_options
    if options is None:
        return False
    if not body.stream:
        raise invalid_field("stream_options", "left out unless stream is true", "stream=false")
    if options.include_obfuscation:
        raise invalid_field("stream_options.include_obfuscation", "false, because chunks are not padded", "true")
    return bool(options.include_usage)


def _message(message: OpenAIMessage, where: str) -> wire.Message:
    fields.check_supported(message, where)
    content = message.content
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    elif content is None and message.tool_calls is None:
        raise missing_field(f"{where}.content")
    calls = [(call.id, call.function) for call in message.tool_calls or ()]
    return wire.Message(
        role="system" if message.role == "developer" else message.role,
        content=content,
        tool_calls=[wire.ToolCall(id=id_, name=each.name, arguments=each.arguments or "{}") for id_, each in calls],
        tool_call_id=message.tool_call_id,
    )


def make_tool(function: ChatFunction, where: str) -> wire.Tool:
    given = function.parameters
    parameters = None if given is None else fields.dump_json(given, f"{where}.parameters")
    description, strict = function.description, function.strict
    return wire.Tool(name=function.name, description=description, parameters=parameters, strict=strict)


def make_tool_choice(
    name: str | None, mode: str | None, parallel: bool | None, *, has_tools: bool
) -> wire.ToolChoice | None:
    """Return the tool choice; None if the request sets neither a tool choice nor a limit on parallel calls."""
    is_single = parallel is False
    if name is not None:
        return wire.ToolChoice(name=name, one_at_most=is_single)
    if mode is not None:
        return wire.ToolChoice(mode=TOOL_MODES[mode], one_at_most=is_single)
    if is_single and not has_tools:
        raise invalid_field("parallel_tool_calls", "left out if there are no tools", "false")
    return wire.ToolChoice(one_at_most=True) if is_single else None


def _structure(asked: ResponseFormat | None) -> wire.Structure | None:
    """Return the form that the answer must have; None for plain text."""
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return wire.Structure(json_object=True)
    if asked.json_schema is None:
        raise missing_field("response_format.json_schema.name")
    where, schema = "response_format.json_schema.schema", asked.json_schema.schema
    if schema is None:
        raise invalid_field(where, "a JSON Schema, which is an object", shorten(None))
    return wire.Structure(json_schema=fields.dump_json(schema, where))
