"""What comes back."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from octet.sdk.asking import Asking
from octet.sdk.errors import OctetError, ServerError
from octet.sdk.receipt import Receipt
from octet.sdk.tools import Calls, ToolCall, ToolCallPart, part_from
from octet.v1 import inference_pb2 as wire


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    chosen: float
    top: tuple[tuple[int, float], ...]
    """Tokens and their log probabilities, most likely first."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Since the last one. Text may lag behind its tokens."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    """One for each token, when asked for."""
    tool_calls: tuple[ToolCallPart, ...] = ()
    """What was written of calls; none of it is in the text."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    receipt: Receipt
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenCount:
    prompt_tokens: int
    specialist: str
    """Whose tokens they are: who would answer now."""


def chunk_from(message: wire.Chunk) -> Chunk:
    logprobs = tuple(_logprobs(each) for each in message.logprobs)
    return Chunk(message.text, tuple(message.token_ids), logprobs, tuple(map(part_from, message.tool_calls)))


def _logprobs(message: wire.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.chosen, tuple((each.token, each.logprob) for each in message.top))


class Heard:
    """What a stream has said so far, whoever reads it."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._texts: list[str] = []
        self._calls = Calls()
        self._receipt: Receipt | None = None
        self._begun = False
        self._complete = False
        self._when_whole: Callable[[Heard], None] | None = None

    def when_whole(self, do: "Callable[[Heard], None]") -> None:
        """Done once, with this, when the answer has been read to its end and was good."""
        self._when_whole = do

    @property
    def request_id(self) -> str:
        return self._asking.request_id

    @property
    def text(self) -> str:
        """All that came so far."""
        return "".join(self._texts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All that came so far; the last may not be whole before the end."""
        return self._calls.all()

    @property
    def receipt(self) -> Receipt:
        """Whole once the answer has ended, well or not; before that, and for one that was abandoned, as it was routed.

        Raises LookupError while the router has not said anything.
        """
        if self._receipt is None:
            raise LookupError("there is no receipt: the router has not said anything about this request")
        return self._receipt

    def _hear(self, event: wire.InferEvent) -> Chunk | None:
        if event.HasField("chunk"):
            self._begin()
            chunk = chunk_from(event.chunk)
            self._texts.append(chunk.text)
            self._calls.hear(event.chunk.tool_calls)
            return chunk
        self._complete = event.HasField("receipt")
        self._receipt = Receipt.from_wire(event.receipt if self._complete else event.routed)
        return None

    def _fail(self, error: grpc.RpcError, *, cancelled: bool) -> float:
        """Seconds until the next attempt. Raises OctetError when there is none; never another after the first chunk.
        `cancelled`: by its reader."""
        try:
            return self._asking.failed(error, begun=self._begun, cancelled=cancelled)
        except OctetError as problem:
            self._receipt = problem.receipt or self._receipt
            problem.partial = self.text
            raise

    def _end(self) -> None:
        """The stream is over and its status good."""
        self._begin()
        if not self._complete:
            raise ServerError(
                "the answer ended without its receipt, and may not be whole",
                code=grpc.StatusCode.DATA_LOSS,
                request_id=self.request_id,
                partial=self.text,
            )
        if self._when_whole is not None:
            self._when_whole(self)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._asking.answered()
