"""Options of a request: messages, tools, structured output."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from octet.client.records import ToolCall
from octet.v1 import inference_pb2 as wire

TOOL_MODES = {"auto": wire.ToolChoice.AUTO, "none": wire.ToolChoice.NONE, "required": wire.ToolChoice.REQUIRED}


@dataclass(frozen=True, slots=True)
class Json:
    """JSON that matches a schema; without a schema, any JSON object."""

    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that matches the expression as a whole."""

    pattern: str


class Choice:
    """One of the given strings."""

    __slots__ = ("choices",)

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __repr__(self) -> str:
        return f"Choice{self.choices!r}"


Structure = Mapping[str, Any] | Json | Regex | Choice  # a mapping is a JSON Schema


def structure_to_wire(structure: Structure) -> wire.Structure:
    """Convert a structure to protobuf. Raises TypeError for another type, ValueError for a schema that is not JSON."""
    match structure:
        case Json(None):
            return wire.Structure(json_object=True)
        case Json(schema):
            return wire.Structure(json_schema=json.dumps(schema, allow_nan=False))
        case Regex(pattern):
            return wire.Structure(regex=pattern)
        case Choice():
            return wire.Structure(choice=wire.Choices(choices=structure.choices))
        case Mapping():
            return wire.Structure(json_schema=json.dumps(structure, allow_nan=False))
        case _:
            raise TypeError(f"a structure must be a JSON Schema, Json, Regex or Choice, got {type(structure).__name__}")


class ToolDefinition(TypedDict):
    name: str
    description: NotRequired[str]
    parameters: NotRequired[Mapping[str, Any]]  # JSON Schema of the arguments; without it the tool takes no arguments
    strict: NotRequired[bool]  # constrain the arguments to the schema, even if calling the tool is optional


class ToolChoice(TypedDict, total=False):
    mode: Literal["auto", "none", "required"]
    name: str  # the model must call this tool, regardless of the mode
    one_at_most: bool


class ToolCallBuffer:
    def __init__(self) -> None:
        self._heads: dict[int, tuple[str, str]] = {}
        self._arguments: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def add(self, parts: Iterable[wire.ToolCallPart]) -> None:
        for part in parts:
            call_id, name = self._heads.get(part.index, ("", ""))
            self._heads[part.index] = (call_id or part.id, name or part.name)
            self._arguments.setdefault(part.index, []).append(part.arguments)

    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(part.id, part.name, part.arguments) for part in self.parts())

    def parts(self) -> list[wire.ToolCallPart]:
        """Return one part for each tool call, with its complete arguments."""
        return [
            wire.ToolCallPart(index=index, id=head[0], name=head[1], arguments="".join(self._arguments[index]))
            for index, head in sorted(self._heads.items())
        ]


def tool_to_wire(tool: Mapping[str, Any]) -> wire.Tool:
    """Convert a tool to protobuf. Raises TypeError, ValueError or KeyError if it is invalid."""
    _check_keys(tool, ToolDefinition)
    parameters = tool.get("parameters")
    schema = "" if parameters is None else json.dumps(dict(parameters), allow_nan=False)
    return wire.Tool(
        name=tool["name"], description=tool.get("description") or "", parameters=schema, strict=bool(tool.get("strict"))
    )


def tool_choice_to_wire(choice: str | Mapping[str, Any]) -> wire.ToolChoice:
    """Convert a tool choice to protobuf. Raises TypeError or KeyError if it is invalid."""
    given: Mapping[str, Any] = {"mode": choice} if isinstance(choice, str) else choice
    _check_keys(given, ToolChoice)
    mode = TOOL_MODES[given.get("mode", "auto")]
    return wire.ToolChoice(mode=mode, name=given.get("name", ""), one_at_most=bool(given.get("one_at_most")))


def message_to_wire(message: Mapping[str, Any]) -> wire.Message:
    """Convert a message to protobuf. Raises TypeError or KeyError if it is invalid."""
    calls = [_tool_call_to_wire(each) for each in message.get("tool_calls") or ()]
    content = message.get("content") or "" if calls else message["content"]
    return wire.Message(
        role=message["role"], content=content, tool_calls=calls, tool_call_id=message.get("tool_call_id") or ""
    )


def _tool_call_to_wire(call: ToolCall | Mapping[str, Any]) -> wire.ToolCall:
    if isinstance(call, ToolCall):
        return wire.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
    return wire.ToolCall(id=call["id"], name=call["name"], arguments=call["arguments"])


def _check_keys(given: Mapping[str, Any], kind: Any) -> None:
    unknown = sorted(set(given) - set(kind.__annotations__))
    if unknown:
        raise KeyError(f"unknown key {unknown[0]} (known: {', '.join(kind.__annotations__)})")


class MessageDict(TypedDict):
    role: str
    content: str
    tool_calls: NotRequired[Sequence[ToolCall]]  # calls made by an assistant message
    tool_call_id: NotRequired[str]  # in a tool's message: the id of the call that it answers


class Options(TypedDict, total=False):
    """The options of a request. If one is omitted or None, the router chooses its value by task or by specialist."""

    messages: Sequence[MessageDict] | None  # a conversation instead of a prompt, the newest message last
    template: str | None  # text in which {prompt} and {body} are replaced
    body: str | None  # a document or data that the prompt refers to

    intent: str | None
    force: str | Sequence[str] | None  # only these may answer: the first, or the second if the first cannot
    exclude: str | Sequence[str] | None
    adapters: str | Sequence[str] | None  # in the order in which they are applied
    max_experts: int | None

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int | None  # 0: log probabilities of the chosen tokens; n: also those of the n most likely tokens
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    structure: Structure | None  # the required form of the answer: a JSON Schema, Json, Regex or Choice
    tools: Sequence[ToolDefinition] | None  # tools that the model may call; only with messages
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None
    context_size: int | None
    draft_window: int | None  # the most tokens that a step may guess ahead; 0 for none

    priority: int | None  # 0 to 9; higher priorities are served first
    timeout: float | None  # seconds for the whole call, including retries and the whole answer
    first_token_timeout: float | None
    """Seconds until the first token, including retries; the router ends a request that has no token by then. If the
    router does not respond at all, the client gives up after `timeout`."""
    wait: float | None
    """Seconds of a call in which these time limits do not count yet, so that a refused request may wait for capacity.
    Without it they count at once. Jobs ignore it."""
    session: str | None  # identifies a conversation, so that its requests reach the replica that has its prefix cached
    user: str | None  # identifies the conversation if neither `session` nor `metadata["session_id"]` is given
    metadata: Mapping[str, str] | None  # your own metadata; the router reads only `session_id`
    tenant_salt: bytes | None
    request_id: str | None  # your own id for the request; retries keep it
    validate: bool | None  # check the whole answer with the task's verifier; the receipt holds the result
    ticket: str | None  # of the error that refused the same request before; retries send it by themselves
    trace: str | None  # a W3C traceparent
