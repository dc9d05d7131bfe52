"""Answers, and the chunks they are assembled from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from octet.client.errors import OctetError, ServerError, cancelled_error
from octet.client.options import ToolCallBuffer
from octet.client.receipts import Receipt
from octet.client.records import ToolCall, ToolCallPart
from octet.client.request import Attempts
from octet.v1 import inference_pb2 as wire


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    chosen: float
    top: tuple[tuple[int, float], ...]  # tokens and their log probabilities, most likely first


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of an answer that has arrived since the previous chunk. A token's text may arrive in a later chunk."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]  # one entry per token, if requested
    tool_calls: tuple[ToolCallPart, ...] = ()  # parts of tool calls. They are not repeated in the text.

    @classmethod
    def from_wire(cls, message: wire.Chunk) -> "Chunk":
        logprobs = tuple(
            TokenLogprobs(each.chosen, tuple((top.token, top.logprob) for top in each.top)) for each in message.logprobs
        )
        parts = tuple(ToolCallPart.from_wire(each) for each in message.tool_calls)
        return cls(message.text, tuple(message.token_ids), logprobs, parts)


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    receipt: Receipt
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def experts_used(self) -> tuple[str, ...]:
        return self.receipt.experts_used

    @property
    def tokens_generated(self) -> int:
        return 0 if self.receipt.usage is None else self.receipt.usage.completion_tokens

    @property
    def latency_ms(self) -> int:
        return self.receipt.latency_ms


class AnswerBuilder:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._tool_calls = ToolCallBuffer()
        self.receipt: Receipt | None = None  # preliminary until the answer is complete
        self.is_complete = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self._tool_calls.calls()

    def add(self, event: wire.InferEvent) -> Chunk | None:
        if event.HasField("chunk"):
            chunk = Chunk.from_wire(event.chunk)
            self._texts.append(chunk.text)
            self._token_ids += chunk.token_ids
            self._logprobs += chunk.logprobs
            self._tool_calls.add(event.chunk.tool_calls)
            return chunk
        self.is_complete = event.HasField("receipt")
        self.receipt = Receipt.from_wire(event.receipt if self.is_complete else event.routed)
        return None

    def build(self, request_id: str) -> Answer:
        """Return the answer of a stream that ended with status OK. Raises ServerError if its receipt is missing."""
        if self.receipt is None or not self.is_complete:
            message = "the answer ended without its receipt and may be incomplete"
            raise ServerError(message, code=grpc.StatusCode.DATA_LOSS, request_id=request_id, partial=self.text)
        return Answer(self.text, tuple(self._token_ids), tuple(self._logprobs), self.receipt, self.tool_calls)


class StreamBase:
    """State shared by blocking and asyncio streams."""

    _cancelled: Any  # an event that ends the pause before a retry

    def __init__(self, method: Any, attempts: Attempts, *, is_whole: bool = False) -> None:
        """With `is_whole`, the reader gets only a complete answer, so a request that breaks off can be retried."""
        self._method = method
        self._attempts = attempts
        self._is_whole = is_whole
        self._builder = AnswerBuilder()
        self._call: Any = None
        self._is_over = False
        self._has_begun = False
        self._on_complete: Callable[[str, Receipt], None] | None = None

    def on_complete(self, callback: Callable[[str, Receipt], None]) -> None:
        """Register a function that is called once, with text and receipt, when the whole answer has been read."""
        self._on_complete = callback

    @property
    def request_id(self) -> str:
        return self._attempts.request_id

    @property
    def text(self) -> str:
        return self._builder.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls received so far; the last one may still be incomplete."""
        return self._builder.tool_calls

    @property
    def receipt(self) -> Receipt:
        """The receipt, preliminary until the answer has ended. Raises LookupError before the request is accepted."""
        if self._builder.receipt is None:
            raise LookupError("there is no receipt: the router has not accepted the request yet")
        return self._builder.receipt

    def answer(self) -> Answer:
        """Return the answer. Read the stream to its end first. Raises ServerError if the receipt is missing."""
        return self._builder.build(self.request_id)

    def cancel(self) -> None:
        """Cancel the request; its reader gets Cancelled."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """End reading and cancel the request unless it has ended."""
        self._is_over = True
        self.cancel()

    def _open(self) -> Any:
        """Return the running call, or start the next attempt. Raises OctetError."""
        if self._call is None:
            if self._cancelled.is_set():
                self._is_over = True
                raise cancelled_error(self.request_id)
            message, options = self._attempts.start()
            self._call = self._method(message, **options)
        return self._call

    def _handle(self, event: wire.InferEvent) -> Chunk | None:
        chunk = self._builder.add(event)
        if chunk is not None and not self._is_whole:
            self._begin()
        return chunk

    def _finish(self) -> None:
        """Handle the end of a stream with status OK."""
        self._is_over = True
        answer = self.answer()
        self._begin()
        if self._on_complete is not None:
            self._on_complete(answer.text, answer.receipt)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._attempts.schedule.budget.earn()

    def _fail(self, error: grpc.RpcError) -> float:
        """Return the seconds until the next attempt. If there will be none, raise OctetError with the text so far."""
        self._is_over = True
        try:
            wait = self._attempts.fail(error, begun=self._has_begun, cancelled=self._cancelled.is_set())
        except OctetError as problem:
            self._builder.receipt = problem.receipt or self._builder.receipt
            problem.partial = self.text
            raise
        self._is_over = False
        self._call = None
        self._builder = AnswerBuilder()
        return wait
