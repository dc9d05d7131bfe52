"""Calls of tools in OpenAI's shapes."""

from collections.abc import Sequence
from typing import Any

from octet.sdk.tools import ToolCall
from octet.v1 import inference_pb2 as wire


def message_of(text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """A whole answer. Where tools were called and nothing else was said, there is no content."""
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def delta_of_calls(chunk: wire.Chunk, *, is_first: bool) -> dict[str, Any]:
    """What is new of calls, and of the text beside them."""
    said: dict[str, Any] = {"role": "assistant", "content": None} if is_first else {}
    if chunk.text:
        said["content"] = chunk.text
    return {**said, "tool_calls": [_part(part) for part in chunk.tool_calls]}


def _part(part: wire.ToolCallPart) -> dict[str, Any]:
    if not part.id:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": part.id, "type": "function", "function": function}
