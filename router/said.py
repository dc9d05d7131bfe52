"""Chunks of an answer, put together."""

from octet.v1 import specialist_pb2 as wire


class Said:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self.logprobs: list[wire.TokenLogprobs] = []
        self._calls: dict[int, wire.ToolCallPart] = {}
        self.num_bytes = 0
        """Of the chunks, as they came."""

    def hear(self, chunk: wire.Chunk) -> None:
        self.num_bytes += chunk.ByteSize()
        self._texts.append(chunk.text)
        self._tokens.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        for part in chunk.tool_calls:
            known = self._calls.setdefault(part.index, wire.ToolCallPart(index=part.index))
            known.id = known.id or part.id
            known.name = known.name or part.name
            known.arguments += part.arguments

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def tool_calls(self) -> list[wire.ToolCall]:
        return [
            wire.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for _, call in sorted(self._calls.items())
        ]

    def chunk(self) -> wire.Chunk:
        """All of it as one."""
        calls = [call for _, call in sorted(self._calls.items())]
        return wire.Chunk(text=self.text, token_ids=self._tokens, logprobs=self.logprobs, tool_calls=calls)
