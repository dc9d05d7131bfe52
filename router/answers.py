"""Collects the chunks of a streamed answer."""

from octet.client.options import ToolCallBuffer
from octet.v1 import inference_pb2 as inference
from octet.v1 import specialist_pb2 as wire


class ChunkCollector:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[wire.TokenLogprobs] = []
        self._calls = ToolCallBuffer()
        self.embedding: list[float] = []
        self.num_bytes = 0  # the serialized size of the chunks

    def add(self, chunk: wire.Chunk) -> None:
        self.num_bytes += chunk.ByteSize()
        self._texts.append(chunk.text)
        self.token_ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self._calls.add(chunk.tool_calls)
        self.embedding.extend(chunk.embedding)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def tool_calls(self) -> list[wire.ToolCall]:
        return [wire.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in self._calls.calls()]

    def chunk(self) -> wire.Chunk:
        calls = self._calls.parts()
        return wire.Chunk(text=self.text, token_ids=self.token_ids, logprobs=self.logprobs, tool_calls=calls)


class ResponseCollector:
    """Builds the response of a unary call from the events of a stream."""

    def __init__(self) -> None:
        self.answer = ChunkCollector()
        self.response = inference.InferResponse()

    async def write(self, raw: bytes) -> None:
        event = inference.InferEvent.FromString(raw)
        if event.HasField("chunk"):
            self.answer.add(event.chunk)
        elif event.HasField("receipt"):
            fields = ("text", "token_ids", "logprobs", "tool_calls", "embedding")
            collected = {name: getattr(self.answer, name) for name in fields}
            self.response = inference.InferResponse(receipt=event.receipt, **collected)
