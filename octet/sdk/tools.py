"""Tools that a model may call, and the calls it makes."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from octet.v1 import inference_pb2 as wire

MODES = {"auto": wire.ToolChoice.AUTO, "none": wire.ToolChoice.NONE, "required": wire.ToolChoice.REQUIRED}


class Tool(TypedDict):
    name: str
    description: NotRequired[str]
    parameters: NotRequired[Mapping[str, Any]]
    """A JSON Schema of its arguments; without one it takes none."""
    strict: NotRequired[bool]
    """Only arguments that match the schema can be written, also where the model is free to call or not."""


class ToolChoice(TypedDict, total=False):
    mode: Literal["auto", "none", "required"]
    name: str
    """This tool is called, whatever the mode."""
    one_at_most: bool


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    """For the message that answers it."""
    name: str
    arguments: str
    """As the model wrote it: JSON, unless the answer was cut off."""

    @classmethod
    def from_wire(cls, message: wire.ToolCall) -> "ToolCall":
        return cls(message.id, message.name, message.arguments)


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """Since the last chunk."""

    index: int
    """Of the call, from 0."""
    id: str
    """With the first part of a call, like its name."""
    name: str
    arguments: str
    """To be joined with the parts before."""


class Calls:
    """Put together from their parts."""

    def __init__(self) -> None:
        self._heads: dict[int, tuple[str, str]] = {}
        self._arguments: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def hear(self, parts: Iterable[wire.ToolCallPart]) -> None:
        for part in parts:
            known = self._heads.get(part.index, ("", ""))
            self._heads[part.index] = (known[0] or part.id, known[1] or part.name)
            self._arguments.setdefault(part.index, []).append(part.arguments)

    def all(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(part.id, part.name, part.arguments) for part in self.parts())

    def parts(self) -> list[wire.ToolCallPart]:
        """One for each call: all of it."""
        return [
            wire.ToolCallPart(index=index, id=head[0], name=head[1], arguments="".join(self._arguments[index]))
            for index, head in sorted(self._heads.items())
        ]


def part_from(part: wire.ToolCallPart) -> ToolCallPart:
    return ToolCallPart(part.index, part.id, part.name, part.arguments)


def tool_to_wire(tool: Mapping[str, Any]) -> wire.Tool:
    """Raises TypeError, ValueError, KeyError for what is none."""
    _only(tool, Tool)
    parameters = tool.get("parameters")
    schema = "" if parameters is None else json.dumps(dict(parameters), allow_nan=False)
    return wire.Tool(
        name=tool["name"],
        description=tool.get("description") or "",
        parameters=schema,
        strict=bool(tool.get("strict")),
    )


def choice_to_wire(choice: str | Mapping[str, Any]) -> wire.ToolChoice:
    """Raises TypeError, KeyError for what is none."""
    asked: Mapping[str, Any] = {"mode": choice} if isinstance(choice, str) else choice
    _only(asked, ToolChoice)
    mode = MODES[asked.get("mode", "auto")]
    return wire.ToolChoice(mode=mode, name=asked.get("name", ""), one_at_most=bool(asked.get("one_at_most")))


def message_to_wire(message: Mapping[str, Any]) -> wire.Message:
    """Raises TypeError, KeyError for what is none."""
    calls = [_call(each) for each in message.get("tool_calls") or ()]
    content = message.get("content") or "" if calls else message["content"]
    return wire.Message(
        role=message["role"], content=content, tool_calls=calls, tool_call_id=message.get("tool_call_id") or ""
    )


def _call(call: ToolCall | Mapping[str, Any]) -> wire.ToolCall:
    if isinstance(call, ToolCall):
        return wire.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
    return wire.ToolCall(id=call["id"], name=call["name"], arguments=call["arguments"])


def _only(given: Mapping[str, Any], kind: Any) -> None:
    unknown = sorted(set(given) - set(kind.__annotations__))
    if unknown:
        raise KeyError(f"{unknown[0]} is none of {', '.join(kind.__annotations__)}")
