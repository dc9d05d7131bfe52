"""An answer all at once: what a stream would have said, put together."""

from octet.sdk.tools import Calls
from octet.v1 import inference_pb2 as wire


class Whole:
    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls = Calls()
        self.response = wire.InferResponse()

    async def write(self, raw: bytes) -> None:
        """An InferEvent."""
        event = wire.InferEvent.FromString(raw)
        if event.HasField("chunk"):
            self._text.append(event.chunk.text)
            self._calls.hear(event.chunk.tool_calls)
            self.response.token_ids.extend(event.chunk.token_ids)
            self.response.logprobs.extend(event.chunk.logprobs)
        elif event.HasField("receipt"):
            self.response.text = "".join(self._text)
            for call in self._calls.all():
                self.response.tool_calls.add(id=call.id, name=call.name, arguments=call.arguments)
            self.response.receipt.CopyFrom(event.receipt)
