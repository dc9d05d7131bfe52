"""Validated prompts, messages, tools and answer structures of requests, and the errors that they can cause."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple

ToolMode = Literal["auto", "none", "required"]
StructureKind = Literal["json_object", "json_schema", "regex", "choice", "calls"]


class OfferedTool(NamedTuple):
    name: str
    description: str
    parameters: str  # a JSON Schema of an object, as a JSON string; empty for a tool without parameters
    strict: bool

    def to_template(self) -> dict[str, Any]:
        schema = json.loads(self.parameters) if self.parameters else {"type": "object", "properties": {}}
        description = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **description, "parameters": schema}}


class MessageToolCall(NamedTuple):
    call_id: str
    name: str
    arguments: str  # a JSON object, as a JSON string

    def to_template(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": json.loads(self.arguments)}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCallFragment:
    """Part of a tool call while it is generated; the first fragment carries the call's id and name."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of one request, and whether the model may or must call them."""

    tools: tuple[OfferedTool, ...]
    mode: ToolMode = "auto"
    name: str = ""  # the tool that must be called, regardless of the mode
    one_at_most: bool = False

    @property
    def is_open(self) -> bool:
        return bool(self.tools) and (self.mode != "none" or bool(self.name))

    @property
    def must_call(self) -> bool:
        return self.mode == "required" or bool(self.name)

    @property
    def callable(self) -> tuple[OfferedTool, ...]:
        return tuple(tool for tool in self.tools if self.name in ("", tool.name))


class ChatTurn(NamedTuple):
    role: str
    content: str
    tool_calls: tuple[MessageToolCall, ...] = ()  # calls that an assistant made
    tool_call_id: str = ""  # id of the call that a tool's message answers


class TokenPrompt(NamedTuple):
    ids: tuple[int, ...]


class ChatPrompt(NamedTuple):
    messages: tuple[ChatTurn, ...]
    offer: ToolOffer = ToolOffer(())

    @property
    def visible_tools(self) -> tuple[OfferedTool, ...]:
        return self.offer.tools if self.offer.is_open else ()

    @property
    def needs_tool_template(self) -> bool:
        return self.offer.is_open or any(turn.tool_calls or turn.tool_call_id for turn in self.messages)


Prompt = str | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Structure:
    kind: StructureKind
    text: str = ""  # the schema or the regular expression; for calls, the rules of a grammar that starts with `calls`
    choices: tuple[str, ...] = ()
    answer: "Structure | None" = None  # for calls: the form of an answer without calls; None if `text` covers it

    @property
    def num_bytes(self) -> int:
        own = len(self.text.encode()) + sum(len(choice.encode()) for choice in self.choices)
        return own if self.answer is None else own + self.answer.num_bytes

    def digest(self) -> str:
        answer = None if self.answer is None else self.answer.digest()
        return sha256(json.dumps([self.kind, self.text, self.choices, answer]).encode()).hexdigest()


class FieldTooLarge(ValueError):
    """A field of the request is too large. The request was refused before any work was done."""

    unit = "bytes"

    def __init__(self, field: str, limit: int, got: int) -> None:
        super().__init__(f"{field} has {got} {self.unit}; the limit is {limit}")
        self.field, self.limit, self.got = field, limit, got


class TextTooLong(FieldTooLarge):
    pass


class TooManyMessages(FieldTooLarge):
    unit = "entries"


class NotText(ValueError):
    """The string cannot be encoded as UTF-8: it contains half of a surrogate pair."""

    def __init__(self, field: str, index: int) -> None:
        super().__init__(f"{field} is not valid Unicode: it has a lone surrogate at index {index}")
        self.field, self.index = field, index


class ControlText(ValueError):
    """The vocabulary can encode this text only as a control token."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field} holds {text!r}, which this vocabulary can only encode as a control token")
        self.field, self.text = field, text


class TemplateRefused(ValueError):
    """The chat template is missing, broken or over a limit, or it refused the messages itself."""

    def __init__(self, why: str) -> None:
        super().__init__(f"chat template: {why}")
        self.why = why


class TemplateKilled(TemplateRefused):
    """The rendering process died, or was killed because it was too slow or wrote too much."""


class ToolsUnsupported(ValueError):
    """The chat template does not support tool calls, or uses an unknown format."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
