"""An answer that is wanted whole, as it comes: an error in its middle has what was said before."""

from typing import Any

import grpc

from octet.sdk.answer import Answer, chunk_from
from octet.sdk.asking import Asking
from octet.sdk.errors import OctetError, ServerError
from octet.sdk.receipt import Receipt
from octet.sdk.tools import Calls
from octet.v1 import inference_pb2 as wire


class Gathering:
    """One attempt."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[Any] = []
        self._calls = Calls()
        self._receipt: Receipt | None = None

    def hear(self, event: wire.InferEvent) -> None:
        if event.HasField("receipt"):
            self._receipt = Receipt.from_wire(event.receipt)
        elif event.HasField("chunk"):
            chunk = chunk_from(event.chunk)
            self._texts.append(chunk.text)
            self._tokens += chunk.token_ids
            self._logprobs += chunk.logprobs
            self._calls.hear(event.chunk.tool_calls)

    def failed(self, error: grpc.RpcError) -> float:
        """Seconds until the next attempt: nobody has read any of this one. Raises OctetError when there is none."""
        try:
            return self._asking.failed(error)
        except OctetError as problem:
            problem.partial = "".join(self._texts)
            raise

    def answer(self) -> Answer:
        """When the stream is over and its status good. Raises ServerError."""
        if self._receipt is None:
            raise ServerError(
                "the answer ended without its receipt, and may not be whole",
                code=grpc.StatusCode.DATA_LOSS,
                request_id=self._asking.request_id,
                partial="".join(self._texts),
            )
        self._asking.answered()
        text = "".join(self._texts)
        return Answer(text, tuple(self._tokens), tuple(self._logprobs), self._receipt, self._calls.all())
