"""Chunks of an answer, put together."""

from octet.sdk.tools import Calls
from octet.v1 import specialist_pb2 as wire


class Said:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self.logprobs: list[wire.TokenLogprobs] = []
        self._calls = Calls()
        self.num_bytes = 0
        """Of the chunks, as they came."""

    def hear(self, chunk: wire.Chunk) -> None:
        self.num_bytes += chunk.ByteSize()
        self._texts.append(chunk.text)
        self._tokens.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self._calls.hear(chunk.tool_calls)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def tool_calls(self) -> list[wire.ToolCall]:
        return [wire.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in self._calls.all()]

    def chunk(self) -> wire.Chunk:
        """All of it as one."""
        calls = self._calls.parts()
        return wire.Chunk(text=self.text, token_ids=self._tokens, logprobs=self.logprobs, tool_calls=calls)
