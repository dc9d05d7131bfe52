"""What a model may call, and what it has called."""

import json
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Mode = Literal["auto", "none", "required"]


class Tool(NamedTuple):
    """Checked where a request is received."""

    name: str
    description: str
    parameters: str
    """A JSON Schema of an object, as JSON; empty: it takes nothing."""
    strict: bool

    def shown(self) -> dict[str, Any]:
        """As chat templates expect it."""
        schema = json.loads(self.parameters) if self.parameters else {"type": "object", "properties": {}}
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": schema}}


class ToolCall(NamedTuple):
    call_id: str
    name: str
    arguments: str
    """A JSON object, as JSON."""

    def shown(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function = {"name": self.name, "arguments": json.loads(self.arguments)}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class CallPart:
    """Some of a call as it is written; the first part has its id and its name."""

    index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of one request, and how free the model is."""

    tools: tuple[Tool, ...]
    mode: Mode = "auto"
    name: str = ""
    """This tool is called, whatever the mode."""
    one_at_most: bool = False

    @property
    def is_open(self) -> bool:
        """Whether anything may be called at all."""
        return bool(self.tools) and (self.mode != "none" or bool(self.name))

    @property
    def must_call(self) -> bool:
        return self.mode == "required" or bool(self.name)

    @property
    def callable(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if self.name in ("", tool.name))


NOTHING = Offer(())
