"""What was said, as blocks in the order they were begun: text, and calls of tools."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from octet.sdk.tools import ToolCall
from octet.v1 import inference_pb2 as wire


@dataclass(slots=True)
class TextBlock:
    index: int
    parts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CallBlock:
    index: int
    id: str
    name: str
    parts: list[str] = field(default_factory=list)

    @property
    def input(self) -> dict[str, Any] | None:
        """None for a call that was cut off."""
        return arguments_of("".join(self.parts))


def arguments_of(written: str) -> dict[str, Any] | None:
    """Of a call; None while they are not the object they must be: the answer was cut off."""
    if not written.strip():
        return {}
    try:
        parsed = json.loads(written)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


Block = TextBlock | CallBlock


class Blocks:
    """Of one choice. A text is one block until a call begins; whatever is new of a call goes to its own block."""

    def __init__(self, *, keeps_text: bool = True) -> None:
        self._keeps_text = keeps_text
        self._begun: list[Block] = []
        self._calls: dict[int, CallBlock] = {}

    def __iter__(self) -> Iterator[Block]:
        return iter(self._begun)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """By their own order, whole or not."""
        return tuple(ToolCall(call.id, call.name, "".join(call.parts)) for _, call in sorted(self._calls.items()))

    @property
    def has_calls(self) -> bool:
        """There is one that can be made."""
        return any(call.input is not None for call in self._calls.values())

    @property
    def ends_in_text(self) -> bool:
        return bool(self._begun) and isinstance(self._begun[-1], TextBlock)

    def hear(self, chunk: wire.Chunk) -> list[tuple[Block, str]]:
        """What is new, and of which block: the rest of calls, then text, then calls that begin. What was said behind a
        call comes with its rest where a slow reader makes one chunk of several; no block is gone back to. A block is
        begun with its first part."""
        if not chunk.tool_calls:
            return [self._hear_text(chunk.text)] if chunk.text else []
        heard = [self._hear(part) for part in chunk.tool_calls if part.index in self._calls]
        begins = [part for part in chunk.tool_calls if part.index not in self._calls]
        if chunk.text:
            heard.append(self._hear_text(chunk.text))
        return heard + [self._hear(part) for part in begins]

    def _hear_text(self, said: str) -> tuple[Block, str]:
        text = self._text()
        if self._keeps_text:
            text.parts.append(said)
        return text, said

    def _hear(self, part: wire.ToolCallPart) -> tuple[Block, str]:
        call = self._call(part)
        call.parts.append(part.arguments)
        return call, part.arguments

    def _text(self) -> TextBlock:
        last = self._begun[-1] if self._begun else None
        if isinstance(last, TextBlock):
            return last
        begun = TextBlock(len(self._begun))
        self._begun.append(begun)
        return begun

    def _call(self, part: wire.ToolCallPart) -> CallBlock:
        known = self._calls.get(part.index)
        if known is not None:
            return known
        begun = self._calls[part.index] = CallBlock(len(self._begun), part.id, part.name)
        self._begun.append(begun)
        return begun
