"""Tokens of one answer, counted as they are passed on: for a key that may have only so many."""

from octet.v1 import inference_pb2 as wire
from router.dispatch.relay import Write


class Tally:
    def __init__(self, write: Write) -> None:
        self._write = write
        self._num_said = 0

    async def write(self, raw: bytes) -> None:
        """An InferEvent."""
        event = wire.InferEvent.FromString(raw)
        if event.HasField("chunk"):
            self._num_said += len(event.chunk.token_ids)
        await self._write(raw)

    def num_tokens(self, receipt: wire.Receipt) -> int:
        """Of the prompt and the answer: as the replica says, or as they were seen of an answer that was broken off."""
        if receipt.HasField("usage"):
            return int(receipt.usage.prompt_tokens + receipt.usage.completion_tokens)
        return int(receipt.accepted.prompt_tokens) + self._num_said
