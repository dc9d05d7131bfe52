"""Completions in the dialects of OpenAI and Anthropic: the choices of an answer, and the endpoint that parses a body,
runs its choices and writes the answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from octet.background import cancel_tasks
from octet.client.receipts import Receipt
from octet.client.records import ToolCall
from octet.rpc.handlers import CallerGone
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.api.http import errors
from router.api.http.body import BodyReader
from router.api.http.common_fields import ModelName
from router.api.http.connection import get_trace_headers, open_answer_stream, run_while_connected
from router.serving import RequestServer, TraceHeaders

_FINISH_REASONS = {wire.FINISH_REASON_STOP: "stop", wire.FINISH_REASON_LENGTH: "length"}
_MIN_LOGPROB = -9999.0  # OpenAI's value for an impossible token: JSON has no infinity


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A parsed request body in OpenAI's or Anthropic's dialect. `requests` holds one InferRequest for each choice: the
    first has the request's id, and the ids of the others are that id with a suffix. `field_names` maps the fields of an
    InferRequest to their names in the dialect, for error messages."""

    model: ModelName
    requests: tuple[wire.InferRequest, ...]
    field_names: Callable[[], Mapping[str, str]]
    is_chat: bool
    choices_per_prompt: int = 1
    stream: bool = False
    include_usage: bool = False
    include_receipt: bool = False
    include_logprobs: bool = False


@dataclass(slots=True)
class ContentBlock:
    index: int
    is_text: bool
    id: str = ""
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self.parts)

    @property
    def input(self) -> dict[str, Any] | None:
        """The arguments of a tool call; None if the answer was truncated before they were complete."""
        if not self.content.strip():
            return {}
        try:
            parsed = json.loads(self.content)
        except (ValueError, RecursionError):
            return None
        return parsed if isinstance(parsed, dict) else None


class ContentBlocks:
    """The blocks of one choice in the order in which they started. A text block ends when a tool call starts."""

    def __init__(self, *, keep_text: bool = True) -> None:
        self._keep_text = keep_text
        self._blocks: list[ContentBlock] = []
        self._calls: dict[int, ContentBlock] = {}

    def __iter__(self) -> Iterator[ContentBlock]:
        return iter(self._blocks)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Return complete and incomplete calls in the order of their indexes."""
        return tuple(ToolCall(call.id, call.name, call.content) for _, call in sorted(self._calls.items()))

    @property
    def has_complete_call(self) -> bool:
        return any(call.input is not None for call in self._calls.values())

    @property
    def ends_in_text(self) -> bool:
        return bool(self._blocks) and self._blocks[-1].is_text

    def add(self, chunk: wire.Chunk) -> list[tuple[ContentBlock, str]]:
        """Add a chunk. Return its parts with their blocks: first parts of calls that had already started, then text,
        then new calls. Thus a chunk that ends a call and continues with text does not reopen the call's block."""
        if not chunk.tool_calls:
            return [self._add_text(chunk.text)] if chunk.text else []
        added = [self._add_call(part) for part in chunk.tool_calls if part.index in self._calls]
        starting = [part for part in chunk.tool_calls if part.index not in self._calls]
        if chunk.text:
            added.append(self._add_text(chunk.text))
        return added + [self._add_call(part) for part in starting]

    def _add_text(self, text: str) -> tuple[ContentBlock, str]:
        if not self.ends_in_text:
            self._blocks.append(ContentBlock(len(self._blocks), is_text=True))
        if self._keep_text:
            self._blocks[-1].parts.append(text)
        return self._blocks[-1], text

    def _add_call(self, part: wire.ToolCallPart) -> tuple[ContentBlock, str]:
        call = self._calls.get(part.index)
        if call is None:
            call = self._calls[part.index] = ContentBlock(len(self._blocks), False, part.id, part.name)
            self._blocks.append(call)
        call.parts.append(part.arguments)
        return call, part.arguments


@dataclass(slots=True)
class AnswerChoice:
    index: int
    is_kept: bool  # whether the whole answer is kept; a stream keeps only tool calls, which decide its finish reason
    logprobs: list[wire.TokenLogprobs] = field(default_factory=list)
    blocks: ContentBlocks = field(init=False)
    receipt: wire.Receipt | None = None  # preliminary until the choice has ended
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.blocks = ContentBlocks(keep_text=self.is_kept)

    def add(self, event: wire.InferEvent) -> None:
        if not event.HasField("chunk"):
            self.has_ended = event.HasField("receipt")
            self.receipt = event.receipt if self.has_ended else event.routed
            return
        chunk = event.chunk
        if self.is_kept:
            self.logprobs += chunk.logprobs
        if self.is_kept or chunk.tool_calls or not self.blocks.ends_in_text:
            self.blocks.add(chunk)

    @property
    def text(self) -> str:
        return "".join(block.content for block in self.blocks if block.is_text)

    @property
    def specialist(self) -> str:
        return "" if self.receipt is None else self.receipt.specialist

    @property
    def final_receipt(self) -> wire.Receipt:
        if self.receipt is None or not self.has_ended:
            raise RuntimeError("the choice has not ended")
        return self.receipt

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's finish reason. Raises KeyError if the answer failed."""
        reason = _FINISH_REASONS[self.final_receipt.usage.finish_reason]
        return "tool_calls" if reason == "stop" and self.blocks.has_complete_call else reason


class OctetReceipts(Struct, forbid_unknown_fields=True):
    """The `octet` object in a response of OpenAI's or Anthropic's dialect."""

    receipts: list[dict[str, Any]]


def summarize_receipts(choices: Sequence[AnswerChoice]) -> OctetReceipts:
    return OctetReceipts([summarize_receipt(each.final_receipt) for each in choices])


def summarize_receipt(message: wire.Receipt) -> dict[str, Any]:
    receipt = Receipt.from_wire(message)
    return {
        "request_id": receipt.request_id,
        "specialist": receipt.specialist,
        "replica": receipt.replica,
        "decided_by": receipt.decision.source,
        "why": receipt.decision.why,
        "confidence": receipt.decision.confidence,
        "attempts": len(receipt.attempts),
        "seconds": receipt.timings.total,
    }


def finite_logprob(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB)


def token_text(piece: bytes) -> str:
    """Return the text of a token, with U+FFFD for an incomplete character."""
    return piece.decode(errors="replace")


class ResponseWriter(Protocol):
    """Writes the answer to one request, whole or as events."""

    def __init__(self, request: ApiRequest, choices: Sequence[AnswerChoice], request_id: str, created: int) -> None:
        """`created` is in seconds since 1970."""

    def complete(self) -> Struct: ...
    def write_event(self, choice: AnswerChoice, event: wire.InferEvent) -> bytes: ...
    def end(self) -> bytes: ...
    def fail(self, error: errors.ApiError) -> bytes: ...


@dataclass(frozen=True)
class CompletionEndpoint:
    """A route that answers requests in OpenAI's or Anthropic's dialect."""

    _writer: type[ResponseWriter]
    _service: RequestServer
    _bodies: BodyReader
    _parse: Callable[[dict[str, Any], str], ApiRequest]  # called with a body and a request id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. A stream starts with the first token, so that an earlier error gets its own HTTP status."""
        connection = Request(scope, receive)
        request_id = scope["request_id"]
        request = self._parse(await self._bodies.read_object(connection), request_id)
        choices = [AnswerChoice(index, is_kept=not request.stream) for index in range(len(request.requests))]
        writer = self._writer(request, choices, request_id, self._service.wall_ms() // 1000)
        trace = get_trace_headers(connection)
        if not request.stream:
            await run_while_connected(receive, run_choices(self._service, request, choices, trace))
            headers = {"x-octet-specialist": choices[0].specialist}
            await errors.JsonResponse(writer.complete(), headers=headers)(scope, receive, send)
            return
        stream = open_answer_stream(self._service, scope, receive, send)

        async def write(choice: AnswerChoice, event: wire.InferEvent) -> None:
            events = writer.write_event(choice, event)
            if events:
                await stream.send(events, {"x-octet-specialist": choice.specialist})

        async def work() -> None:
            await run_choices(self._service, request, choices, trace, write)
            await stream.end(writer.end())

        await stream.run(work(), writer.fail)


async def run_choices(
    service: RequestServer,
    request: ApiRequest,
    choices: Sequence[AnswerChoice],
    trace: TraceHeaders,
    handle: Callable[[AnswerChoice, wire.InferEvent], Awaitable[None]] | None = None,
) -> None:
    """Run all choices concurrently. `handle` is called with every event, after the event was added to its choice. If a
    choice fails, cancel the others and raise ApiError or CallerGone."""

    async def run(message: wire.InferRequest, choice: AnswerChoice) -> None:
        async def write(raw: bytes) -> None:
            event = wire.InferEvent.FromString(raw)
            choice.add(event)
            if handle is not None:
                await handle(choice, event)

        await service.answer(message, None, trace, write)

    if len(choices) == 1:
        with refusals_as_errors(request, choices):
            await run(request.requests[0], choices[0])
        return
    pairs = zip(request.requests, choices, strict=True)
    tasks = [asyncio.create_task(run(message, choice)) for message, choice in pairs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        with refusals_as_errors(request, choices):
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        await cancel_tasks(*tasks)


@contextmanager
def refusals_as_errors(request: ApiRequest, choices: Sequence[AnswerChoice]) -> Iterator[None]:
    """Convert a Refusal to an ApiError with the text of all choices so far, and a cancelled choice to CallerGone."""
    try:
        yield
    except Refusal as refusal:
        error = errors.refusal_to_error(refusal, request.field_names())
        partial = [errors.PartialAnswer(choice.index, choice.text) for choice in choices]
        error.partial = [each for each in partial if each.text]
        raise error from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CallerGone from None  # the answering task was cancelled, not this one
