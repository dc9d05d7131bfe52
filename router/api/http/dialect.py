"""Code shared by the dialects of OpenAI and Anthropic: model names, the `octet` object, the choices of an answer, and
the endpoint that parses a body, runs its choices and writes the answer."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from octet.client.receipts import Receipt
from octet.client.records import ToolCall
from octet.config.ensemble import Ensemble
from octet.rpc.handlers import CallerGone
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.api.http import errors, fields
from router.api.http.body import BodyReader
from router.api.http.connection import get_trace_headers, open_answer_stream, run_while_connected
from router.control.adapters import is_generated_load_name
from router.dispatch.replicas.replica import Replica
from router.serving import RequestServer, TraceHeaders

ROUTED_MODEL = "octet"
MODEL_PATTERN = r"octet(?:/([a-z0-9._-]{1,64})(?::([a-z0-9._-]{1,64}))?)?"
_PINNED = re.compile(MODEL_PATTERN)
_MODEL_SCHEMA = {"pattern": f"^{MODEL_PATTERN}$", "examples": [ROUTED_MODEL]}
_MODEL_HELP = "octet lets the router choose; octet/SPECIALIST and octet/SPECIALIST:ADAPTER do not"
ModelField = Annotated[str, Meta(description=_MODEL_HELP, extra_json_schema=_MODEL_SCHEMA)]
StopText = Annotated[str, fields.text_limits("stop", 1)]
StopTexts = Annotated[list[StopText], fields.list_limits("stop")]
MESSAGES = fields.never_missing("a list of at least one message", min_length=1)
IdText = Annotated[str, fields.text_limits("session_id")]
NameText = Annotated[str, fields.text_limits("adapters", 1)]  # the name of a specialist or an adapter
_ChoiceText = Annotated[str, fields.text_limits("structure.choice.choices", 1)]
_FINISH_REASONS = {wire.FINISH_REASON_STOP: "stop", wire.FINISH_REASON_LENGTH: "length"}
_MIN_LOGPROB = -9999.0  # OpenAI's value for an impossible token: JSON has no infinity


@dataclass(frozen=True, slots=True)
class ModelName:
    requested: str
    specialist: str = ""
    adapter: str = ""

    @classmethod
    def parse(cls, name: str) -> "ModelName":
        """Raises ApiError for text that cannot name a model."""
        found = _PINNED.fullmatch(name)
        if found is None:
            raise errors.unknown_model_error(name[:100])
        return cls(name, found[1] or "", found[2] or "")

    def answered_by(self, specialist: str) -> str:
        return self.requested if self.specialist else f"{ROUTED_MODEL}/{specialist}"


def list_model_names(ensemble: Ensemble, replicas: Iterable[Replica]) -> Iterator[str]:
    """Yield all model names, without the adapters that the control plane loaded."""
    adapters = {each.name: set(each.adapters) for each in ensemble.specialists}
    for replica in replicas:
        adapters[replica.specialist] |= {name for name in replica.adapters if not is_generated_load_name(name)}
    yield ROUTED_MODEL
    for specialist, names in adapters.items():
        yield f"{ROUTED_MODEL}/{specialist}"
        yield from (f"{ROUTED_MODEL}/{specialist}:{name}" for name in sorted(names))


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A parsed request body of any dialect, with one InferRequest for each choice, in order. The first has the
    request's id; the ids of the others begin with it. `field_names` maps the fields of an InferRequest to the dialect's
    names, for errors."""

    model: ModelName
    requests: tuple[wire.InferRequest, ...]
    field_names: Callable[[], Mapping[str, str]]
    is_chat: bool
    choices_per_prompt: int = 1
    stream: bool = False
    include_usage: bool = False
    include_receipt: bool = False
    include_logprobs: bool = False


class GenerationOptions(Struct, kw_only=True):
    """Sampling and length, with the same names in OpenAI's dialect and in Octet's own."""

    temperature: Annotated[float, fields.number_limits("sampling.temperature")] | None = None
    top_p: Annotated[float, fields.number_limits("sampling.top_p")] | None = None
    presence_penalty: Annotated[float, fields.number_limits("sampling.presence_penalty")] | None = None
    frequency_penalty: Annotated[float, fields.number_limits("sampling.frequency_penalty")] | None = None
    min_p: Annotated[float, fields.number_limits("sampling.min_p")] | None = None
    repetition_penalty: Annotated[float, fields.number_limits("sampling.repetition_penalty")] | None = None
    top_k: Annotated[fields.Int64, fields.number_limits("sampling.top_k")] | None = None
    seed: fields.Int64 | None = None
    max_tokens: Annotated[fields.Int64, fields.number_limits("max_tokens")] | None = None
    min_tokens: Annotated[fields.Int64, fields.number_limits("min_tokens")] | None = None
    ignore_eos: bool | None = None
    stop: StopText | StopTexts | None = None


class StructureBody(Struct, forbid_unknown_fields=True):
    """The form that an answer must have. Exactly one field is set."""

    json_object: Annotated[bool, Meta(extra_json_schema={"const": True})] | None = None
    json_schema: fields.JsonSchemaObject | None = None
    regex: Annotated[str, fields.text_limits("structure.regex", 1)] | None = None
    choice: Annotated[list[_ChoiceText], fields.list_limits("structure.choice.choices", 1)] | None = None

    @classmethod
    def unknown_error(cls, where: str, got: str, known: Sequence[str]) -> errors.ApiError:
        return errors.invalid_field(where, f"an object with exactly one of the keys {', '.join(known)}", got)

    def to_wire(self, where: str) -> wire.Structure:
        kinds = self.__struct_fields__
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise self.unknown_error(where, ", ".join(given) or "no key", kinds)
        if self.json_object is False:
            raise errors.invalid_field(f"{where}.json_object", "true or left out", "false")
        if self.json_schema is not None:
            return wire.Structure(json_schema=fields.dump_json(self.json_schema, f"{where}.json_schema"))
        if self.choice is not None:
            return wire.Structure(choice=wire.Choices(choices=self.choice))
        return wire.Structure(json_object=self.json_object, regex=self.regex)


class OctetOptions(Struct, forbid_unknown_fields=True):
    """The `octet` object in the body of another vendor's dialect."""

    intent: Annotated[str, fields.text_limits("intent")] | None = None
    priority: Annotated[fields.Int64, fields.number_limits("priority")] | None = None
    timeout_ms: Annotated[fields.Int64, fields.number_limits("timeout_ms")] | None = None
    first_token_timeout_ms: Annotated[fields.Int64, fields.number_limits("first_token_timeout_ms")] | None = None
    exclude: Annotated[list[NameText], fields.list_limits("exclude_specialists")] | None = None
    adapters: Annotated[list[NameText], fields.list_limits("adapters")] | None = None
    session_id: IdText | None = None
    receipt: bool | None = None
    structure: StructureBody | None = None

    @classmethod
    def unknown_error(cls, where: str, got: str, known: Sequence[str]) -> errors.ApiError:
        return errors.invalid_field(f"{where}.{got[:60]}", f"one of {', '.join(known)}", "an unknown key")


def octet_request(model: ModelName, options: OctetOptions | None) -> wire.InferRequest:
    """Build a request from the model name and the `octet` object. Raises ApiError for an invalid option."""
    request = wire.InferRequest()
    if options is not None:
        if model.adapter and options.adapters is not None:
            raise errors.invalid_field("octet.adapters", "left out if the model names an adapter", model.adapter)
        request.exclude_specialists.extend(options.exclude or ())
        request.adapters.extend(options.adapters or ())
        for name in ("intent", "session_id", "priority", "timeout_ms", "first_token_timeout_ms", "seed"):
            value = getattr(options, name, None)
            if value is not None:
                setattr(request, name, value)
        if options.structure is not None:
            request.structure.CopyFrom(options.structure.to_wire("octet.structure"))
    if model.specialist:
        request.force_specialists.append(model.specialist)
    if model.adapter:
        request.adapters.append(model.adapter)
    return request


def octet_field_names(model: ModelName, options: type[OctetOptions]) -> dict[str, str]:
    """Return the `octet` object's names for the fields of an InferRequest."""
    same = set(options.__struct_fields__) - {"exclude", "adapters", "receipt"}
    return {
        **{name: f"octet.{name}" for name in same},
        **{f"structure.{kind}": f"octet.structure.{kind}" for kind in StructureBody.__struct_fields__},
        "structure.choice.choices": "octet.structure.choice",
        "force_specialists": "model",
        "exclude_specialists": "octet.exclude",
        "adapters": "model" if model.adapter else "octet.adapters",
    }


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
        """Return new content with its block: first the rest of open calls, then text, then new calls. A chunk merged
        for a slow reader may hold the rest of a call together with the text after it, and no block is reopened."""
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
        """Raises KeyError for the finish reason of a failed answer, which is reported as an error instead."""
        reason = _FINISH_REASONS[self.final_receipt.usage.finish_reason]
        return "tool_calls" if reason == "stop" and self.blocks.has_complete_call else reason


class OctetReceipts(Struct, forbid_unknown_fields=True):
    """The `octet` object of a response in another vendor's dialect."""

    receipts: list[dict[str, Any]]


def summarize_receipts(choices: Sequence[AnswerChoice]) -> OctetReceipts:
    return OctetReceipts([_summarize(Receipt.from_wire(each.final_receipt)) for each in choices])


def _summarize(receipt: Receipt) -> dict[str, Any]:
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
    """Return the text of a token, which may be part of a character."""
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
    """A route that answers requests in another vendor's dialect."""

    _writer: type[ResponseWriter]
    _service: RequestServer
    _bodies: BodyReader
    _parse: Callable[[dict[str, Any], str], ApiRequest]  # called with a body and a request id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream nothing before the first token, so that earlier errors have their own status."""
        connection = Request(scope, receive)
        request_id = scope["request_id"]
        request = self._parse(await self._bodies.read_object(connection), request_id)
        choices = [AnswerChoice(index, is_kept=not request.stream) for index in range(len(request.requests))]
        writer = self._writer(request, choices, request_id, self._service.wall_ms() // 1000)
        trace = get_trace_headers(connection)
        if not request.stream:
            await run_while_connected(receive, run_choices(self._service, request, choices, trace, _ignore_event))
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


async def _ignore_event(choice: AnswerChoice, event: wire.InferEvent) -> None:
    """Do nothing: the choice has already added the event."""


async def run_choices(
    service: RequestServer,
    request: ApiRequest,
    choices: Sequence[AnswerChoice],
    trace: TraceHeaders,
    handle: Callable[[AnswerChoice, wire.InferEvent], Awaitable[None]],
) -> None:
    """Run all choices concurrently; `handle` gets every event after its choice has added it. If one choice fails,
    cancel the others and raise its ApiError, or CallerGone."""

    async def run(message: wire.InferRequest, choice: AnswerChoice) -> None:
        async def write(raw: bytes) -> None:
            event = wire.InferEvent.FromString(raw)
            choice.add(event)
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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def refusals_as_errors(request: ApiRequest, choices: Sequence[AnswerChoice]) -> Iterator[None]:
    """Convert refusals to errors that include the text of every choice."""
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
