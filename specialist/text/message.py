"""One turn of a conversation."""

from typing import NamedTuple

from specialist.tools.tool import ToolCall


class Message(NamedTuple):
    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant called."""
    tool_call_id: str = ""
    """Which call a tool answers."""
