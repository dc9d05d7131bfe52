"""Octet's own format: POST /v1/infer, and background jobs at /v1/jobs."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octet.background import cancel_tasks
from octet.client.jobs import Job, to_datetime
from octet.client.options import TOOL_MODES
from octet.client.receipts import Receipt
from octet.rpc.checks import TOOL_NAME_PATTERN
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from octet.v1 import jobs_pb2
from router.answers import ChunkCollector, ResponseCollector
from router.api.http import connection, errors, fields
from router.api.http.body import BodyReader
from router.api.http.common_fields import GenerationOptions, IdText, NameText, StructureBody, UserText
from router.api.http.completions import finite_logprob, token_text
from router.jobs.manager import JobManager
from router.receipts import RECEIPT_METADATA_KEY
from router.routing.validation import COUNTS
from router.serving import RequestServer

_LISTS = ("force_specialists", "exclude_specialists", "adapters", "stop")
_ALIASES: Mapping[str, str] = {"force_experts": "force_specialists", "exclude_experts": "exclude_specialists"}
_CONVERTED = ("messages", "tools", "tool_choice", "structure", "metadata", *_ALIASES)
_SAMPLING = frozenset(wire.Sampling.DESCRIPTOR.fields_by_name)
_KEEPALIVE_SECONDS = 15.0
JOB_STALL_SECONDS = 30.0  # a caller that reads nothing for this long is disconnected, and may reconnect for more events
_Metadata = Annotated[dict[str, str | None], Meta(extra_json_schema={"maxProperties": COUNTS["metadata"]})]
_Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
ReceiptObject = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Receipt"})]
ValidationObject = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Validation"})]


class InferToolCall(Struct, forbid_unknown_fields=True):
    id: str
    name: str
    arguments: str


class InferMessage(Struct, forbid_unknown_fields=True):
    role: Annotated[str, fields.text_limits("messages.role", 1)]
    content: str | None = None
    tool_calls: list[InferToolCall] | None = None
    tool_call_id: str | None = None

    def to_wire(self, where: str) -> wire.Message:
        if self.content is None and not self.tool_calls:
            raise errors.missing_field(f"{where}.content")
        calls = [wire.ToolCall(id=each.id, name=each.name, arguments=each.arguments) for each in self.tool_calls or ()]
        return wire.Message(role=self.role, content=self.content, tool_calls=calls, tool_call_id=self.tool_call_id)


class InferTool(Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(extra_json_schema={"pattern": f"^{TOOL_NAME_PATTERN}$"})]
    description: str | None = None
    parameters: fields.JsonSchemaObject | None = None
    strict: bool | None = None

    def to_wire(self, where: str) -> wire.Tool:
        parameters = None if self.parameters is None else fields.dump_json(self.parameters, f"{where}.parameters")
        return wire.Tool(name=self.name, description=self.description, parameters=parameters, strict=self.strict)


class InferToolChoice(Struct, forbid_unknown_fields=True):
    name: str


class JobRequest(GenerationOptions, forbid_unknown_fields=True, kw_only=True):
    """The fields of an InferRequest, with the fields of its `sampling` on the same level."""

    prompt: Annotated[str, fields.text_limits("prompt")] | None = None
    template: Annotated[str, fields.text_limits("template")] | None = None
    body: Annotated[str, fields.text_limits("body")] | None = None
    messages: Annotated[list[InferMessage], fields.list_limits("messages")] | None = None
    tools: list[InferTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | InferToolChoice | None = None
    structure: StructureBody | None = None
    intent: Annotated[str, fields.text_limits("intent")] | None = None
    session_id: IdText | None = None
    user_id: UserText | None = None
    force_specialists: NameText | Annotated[list[NameText], fields.list_limits("force_specialists")] | None = None
    exclude_specialists: NameText | Annotated[list[NameText], fields.list_limits("exclude_specialists")] | None = None
    force_experts: NameText | Annotated[list[NameText], fields.list_limits("force_specialists")] | None = None
    exclude_experts: NameText | Annotated[list[NameText], fields.list_limits("exclude_specialists")] | None = None
    adapters: NameText | Annotated[list[NameText], fields.list_limits("adapters")] | None = None
    max_experts: Annotated[fields.Int64, fields.number_limits("max_experts")] | None = None
    context_size: Annotated[fields.Int64, fields.number_limits("context_size")] | None = None
    draft_window: Annotated[fields.Int64, fields.number_limits("draft_window")] | None = None
    priority: Annotated[fields.Int64, fields.number_limits("priority")] | None = None
    timeout_ms: Annotated[fields.Int64, fields.number_limits("timeout_ms")] | None = None
    first_token_timeout_ms: Annotated[fields.Int64, fields.number_limits("first_token_timeout_ms")] | None = None
    validate: bool | None = None
    metadata: _Metadata | None = None
    num_logprobs: Annotated[fields.Int64, fields.number_limits("sampling.num_logprobs")] | None = None
    typical_p: Annotated[float, fields.number_limits("sampling.typical_p")] | None = None

    def to_wire(self) -> wire.InferRequest:
        request = wire.InferRequest(
            messages=[each.to_wire(f"messages[{index}]") for index, each in enumerate(self.messages or ())],
            tools=[each.to_wire(f"tools[{index}]") for index, each in enumerate(self.tools or ())],
            metadata={key: value for key, value in (self.metadata or {}).items() if value is not None},
            structure=None if self.structure is None else self.structure.to_wire("structure"),
        )
        if isinstance(self.tool_choice, InferToolChoice):
            request.tool_choice.name = self.tool_choice.name
        elif self.tool_choice is not None:
            request.tool_choice.mode = TOOL_MODES[self.tool_choice]
        for name in JobRequest.__struct_fields__:
            value = getattr(self, name)
            if value is None or name in _CONVERTED:
                continue
            if name in _LISTS:
                getattr(request, name).extend([value] if isinstance(value, str) else value)
            else:
                setattr(request.sampling if name in _SAMPLING else request, name, value)
        for alias, name in self._aliases_used():
            value = getattr(self, alias)
            if getattr(self, name) is not None:
                raise errors.invalid_field(alias, f"left out if {name} is given: both mean the same", "both")
            getattr(request, name).extend([value] if isinstance(value, str) else value)
        return request

    def field_names(self) -> Mapping[str, str]:
        """Map the fields of an InferRequest to the names that this caller used."""
        return {**INFER_FIELD_NAMES, **{name: alias for alias, name in self._aliases_used()}}

    def _aliases_used(self) -> Iterable[tuple[str, str]]:
        return ((alias, name) for alias, name in _ALIASES.items() if getattr(self, alias) is not None)


INFER_FIELD_NAMES: Mapping[str, str] = {  # the body's names for the fields of an InferRequest
    f"sampling.{name}": name for name in JobRequest.__struct_fields__ if name in _SAMPLING
}


class InferRequest(JobRequest, kw_only=True):
    stream: bool | None = None
    embed: bool | None = None

    def to_wire(self) -> wire.InferRequest:
        request = JobRequest.to_wire(self)
        request.embed = bool(self.embed)
        return request


class TokenLogprob(Struct, forbid_unknown_fields=True):
    token: str
    logprob: float


class ChosenTokenLogprob(TokenLogprob, forbid_unknown_fields=True):
    top: list[TokenLogprob]


class InferUsage(Struct, forbid_unknown_fields=True):
    prompt_tokens: fields.Count
    completion_tokens: fields.Count
    total_tokens: fields.Count
    cache_hit_tokens: fields.Count


class InferAnswer(Struct, forbid_unknown_fields=True, kw_only=True):
    id: str
    job_id: str  # the same id
    text: str
    tool_calls: list[InferToolCall]
    logprobs: list[ChosenTokenLogprob] | UnsetType = UNSET
    finish_reason: str | None
    partial: Annotated[bool, Meta(extra_json_schema={"const": False})]
    validation: ValidationObject | None
    specialist: str
    experts_used: list[str]  # the specialist and its adapters, in the order applied; empty for a bare model
    tokens_generated: fields.Count
    latency_ms: fields.Count  # from the request's arrival to the end of its answer
    usage: InferUsage
    embedding: list[float] | UnsetType = UNSET
    receipt: ReceiptObject


class Submission(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request that was accepted and has no answer yet."""

    job_id: str
    status: Literal["queued", "processing"]
    submitted_at: _Time
    estimated_wait_ms: fields.Count | UnsetType = UNSET  # only of a queued request, and only if it could be estimated


class InferError(errors.ErrorEnvelope, kw_only=True):
    id: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    partial: Annotated[bool, Meta(extra_json_schema={"const": True})] | UnsetType = UNSET
    receipt: ReceiptObject | UnsetType | None = UNSET


async def infer(
    service: RequestServer, jobs: JobManager, bodies: BodyReader, scope: Scope, receive: Receive, send: Send
) -> None:
    """POST /v1/infer."""
    incoming = Request(scope, receive)
    body = fields.to_struct(await bodies.read_object(incoming), InferRequest)
    request, names = body.to_wire(), body.field_names()
    if _prefers_async(incoming):
        await (await _submit(jobs, incoming, body, request))(scope, receive, send)
        return
    request.request_id = scope["request_id"]
    trace = connection.get_trace_headers(incoming)
    if not body.stream:
        collector = ResponseCollector()
        try:
            work = service.answer(request, None, trace, collector.write)
            await connection.run_while_connected(receive, work)
        except Refusal as refusal:
            response = _partial_response(refusal, request.request_id, collector.answer, names)
        else:
            content = _answer_to_json(collector.response, request)
            headers = {"x-octet-specialist": collector.response.receipt.specialist}
            response = errors.JsonResponse(content, headers=headers)
        await response(scope, receive, send)
        return
    stream = connection.open_answer_stream(service, scope, receive, send)

    async def write(raw: bytes) -> None:
        event = wire.InferEvent.FromString(raw)
        headers = {"x-octet-specialist": event.routed.specialist} if event.HasField("routed") else None
        await stream.send(_infer_event(event), headers)

    async def answer() -> None:
        await service.answer(request, None, trace, write)
        await stream.end()

    def error_event(error: errors.ApiError) -> bytes:
        return connection.named_event("error", {**error.envelope(), "partial": True})

    await stream.run(answer(), error_event, names)


def _prefers_async(request: Request) -> bool:
    """Whether the caller asks to answer with a job instead of waiting (RFC 7240)."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(each.partition(";")[0].strip().lower() == "respond-async" for each in preferences)


async def _submit(jobs: JobManager, incoming: Request, body: InferRequest, request: wire.InferRequest) -> Response:
    """Submit the request as a job. Raises ApiError for a field that a job cannot have."""
    if body.stream:
        raise errors.invalid_field("stream", "left out with prefer: respond-async", "true")
    with errors.rename_fields(body.field_names()):
        job, _ = await jobs.submit(request, incoming.headers.get("idempotency-key", ""))
    found = Job.from_wire(job)
    content = Submission(
        job_id=found.id,
        status="queued" if found.status == "queued" else "processing",
        submitted_at=found.submitted_at.isoformat(),
        estimated_wait_ms=UNSET if found.estimated_wait_ms is None else found.estimated_wait_ms,
    )
    headers = {"location": f"/v1/jobs/{found.id}", "preference-applied": "respond-async"}
    return errors.JsonResponse(content, 202, headers=headers)


def chunk_to_json(chunk: wire.Chunk) -> dict[str, Any]:
    found: dict[str, Any] = {"text": chunk.text}
    if chunk.tool_calls:
        names = ("index", "id", "name", "arguments")
        found["tool_calls"] = [{name: getattr(each, name) for name in names} for each in chunk.tool_calls]
    if chunk.logprobs:
        found["logprobs"] = _logprobs(chunk.logprobs)
    if chunk.embedding:
        found["embedding"] = list(chunk.embedding)
    return found


def _answer_to_json(answer: wire.InferResponse, request: wire.InferRequest) -> InferAnswer:
    receipt, usage = Receipt.from_wire(answer.receipt), answer.receipt.usage
    num_prompt, num_answer = usage.prompt_tokens, usage.completion_tokens
    return InferAnswer(
        id=receipt.request_id,
        text=answer.text,
        tool_calls=[InferToolCall(each.id, each.name, each.arguments) for each in answer.tool_calls],
        logprobs=_logprobs(answer.logprobs) if request.sampling.HasField("num_logprobs") else UNSET,
        **_ending(receipt),
        usage=InferUsage(num_prompt, num_answer, num_prompt + num_answer, usage.cache_hit_tokens),
        embedding=list(answer.embedding) if request.embed else UNSET,
        receipt=receipt.to_dict(),
    )


def _ending(receipt: Receipt) -> dict[str, Any]:
    return {
        "job_id": receipt.request_id,
        "specialist": receipt.specialist,
        "experts_used": list(receipt.experts_used),
        "tokens_generated": 0 if receipt.usage is None else receipt.usage.completion_tokens,
        "latency_ms": receipt.latency_ms,
        "finish_reason": None if receipt.usage is None else receipt.usage.finish_reason,
        "partial": False,
        "validation": None if receipt.validation is None else asdict(receipt.validation),
    }


def _partial_response(refusal: Refusal, request_id: str, answer: ChunkCollector, names: Mapping[str, str]) -> Response:
    """Return the error with the answer so far. If the answer is empty, raise ApiError unless the request timed out."""
    error = errors.refusal_to_error(refusal, names)
    if error.status != 504 and not answer.num_bytes:
        raise error
    raw = dict(refusal.extra_metadata).get(RECEIPT_METADATA_KEY)
    receipt = None if raw is None else Receipt.from_wire(wire.Receipt.FromString(raw)).to_dict()
    content = InferError(error=error.body(), id=request_id, text=answer.text, partial=True, receipt=receipt)
    return errors.JsonResponse(content, error.status, headers=error.response_headers())


def _infer_event(event: wire.InferEvent) -> bytes:
    if event.HasField("chunk"):
        return connection.named_event("chunk", chunk_to_json(event.chunk))
    if event.HasField("routed"):
        receipt = Receipt.from_wire(event.routed)
        return connection.named_event("routed", {**_progress(receipt), "receipt": receipt.to_dict()})
    receipt = Receipt.from_wire(event.receipt)
    return connection.named_event("receipt", {**_ending(receipt), "receipt": receipt.to_dict()})


def _progress(receipt: Receipt) -> dict[str, Any]:
    """Return the fields of a Submission for a request that a replica has accepted. The wait is its forecast."""
    admission = receipt.admission
    forecast = None if admission is None else admission.forecast
    wait_ms = None if forecast is None else round(forecast.wait * 1000)
    is_queued = bool(wait_ms) or (admission is not None and admission.queue_position > 0)
    submission = Submission(
        job_id=receipt.request_id,
        status="queued" if is_queued else "processing",
        submitted_at=to_datetime(receipt.created_unix_ms).isoformat(),
        estimated_wait_ms=UNSET if wait_ms is None or not is_queued else wait_ms,
    )
    found: dict[str, Any] = msgspec.to_builtins(submission)
    return found


def _logprobs(logprobs: Iterable[wire.TokenLogprobs]) -> list[ChosenTokenLogprob]:
    return [
        ChosenTokenLogprob(
            token_text(each.piece),
            finite_logprob(each.chosen),
            [TokenLogprob(token_text(top.piece), finite_logprob(top.logprob)) for top in each.top],
        )
        for each in logprobs
    ]


class JobBody(Struct, forbid_unknown_fields=True):
    id: str
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    submitted_at: _Time
    started_at: _Time | None
    ended_at: _Time | None
    text: str
    tool_calls: list[InferToolCall]
    partial: bool
    error: errors.ErrorBody | None
    finish_reason: str | None
    validation: ValidationObject | None
    receipt: ReceiptObject | None
    attempts: fields.Count
    estimated_wait_ms: fields.Count | None


def job_to_json(job: jobs_pb2.Job) -> dict[str, Any]:
    error: dict[str, Any] | None = None
    if job.HasField("error"):
        kind: Any = errors.error_kind(job.error.reason)
        param = INFER_FIELD_NAMES.get(job.error.field, job.error.field) or None
        body = errors.ErrorBody(job.error.message, kind, param, errors.error_code(job.error.reason))
        error = msgspec.to_builtins(body)
    return {**Job.from_wire(job).to_dict(), "error": error}


def job_routes(jobs: JobManager, bodies: BodyReader) -> list[Route]:
    async def submit(request: Request) -> Response:
        """Respond with 202, or with 200 if a job was submitted before with the same idempotency key."""
        body = fields.to_struct(await bodies.read_object(request), JobRequest)
        message = body.to_wire()
        with errors.rename_fields(body.field_names()):
            job, is_new = await jobs.submit(message, request.headers.get("idempotency-key", ""))
        return errors.JsonResponse(job_to_json(job), 202 if is_new else 200, headers={"location": f"/v1/jobs/{job.id}"})

    async def newest(request: Request) -> Response:
        limit = request.query_params.get("limit")
        most = None if limit is None else fields.parse_whole_number("limit", limit)
        with errors.rename_fields({"id": "before"}):
            found = await jobs.newest(most, request.query_params.get("before", ""), _tenant(request))
        return errors.JsonResponse({"jobs": [job_to_json(job) for job in found]})

    async def submit_or_list(request: Request) -> Response:
        return await (submit(request) if request.method == "POST" else newest(request))

    async def get(request: Request) -> Response:
        return errors.JsonResponse(job_to_json(await jobs.get(request.path_params["job_id"], _tenant(request))))

    async def cancel(request: Request) -> Response:
        return errors.JsonResponse(job_to_json(await jobs.cancel(request.path_params["job_id"], _tenant(request))))

    return [
        Route("/v1/jobs", submit_or_list, methods=["GET", "POST"]),
        Route("/v1/jobs/{job_id}", get, methods=["GET"]),
        connection.ConnectionRoute("/v1/jobs/{job_id}/events", partial(watch_job, jobs), "GET"),
        Route("/v1/jobs/{job_id}/cancel", cancel, methods=["POST"]),
    ]


def _tenant(request: Request) -> str:
    return request.query_params.get("tenant", "")


async def watch_job(jobs: JobManager, scope: Scope, receive: Receive, send: Send) -> None:
    """GET /v1/jobs/{job_id}/events."""
    request = Request(scope, receive)
    job_id = request.path_params["job_id"]
    after = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    events = jobs.watch(job_id, fields.parse_whole_number("after", after))
    if request.method == "HEAD":
        events = _current_status(jobs, job_id)
    stream = connection.EventStreamWriter(scope, receive, send, JOB_STALL_SECONDS)
    await stream.run(_follow_job(events, stream))


async def _follow_job(events: AsyncGenerator[jobs_pb2.JobEvent, None], stream: connection.EventStreamWriter) -> None:
    """Send a job's events. If the caller already has them all, respond with 204, so that browsers do not reconnect."""
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait({coming}, timeout=_KEEPALIVE_SECONDS))[0]:
                    await stream.send(connection.KEEPALIVE_EVENT)
            finally:
                await cancel_tasks(coming)
            event = coming.result()
            if event is None:
                break
            await stream.send(_job_event(event))
    await (stream.end() if stream.is_open else stream.end_empty())


async def _current_status(jobs: JobManager, job_id: str) -> AsyncGenerator[jobs_pb2.JobEvent, None]:
    """Yield only the job's current status, for a HEAD request, which does not wait for events."""
    yield jobs_pb2.JobEvent(status=await jobs.get(job_id))


def _job_event(event: jobs_pb2.JobEvent) -> bytes:
    match event.WhichOneof("event"):
        case "status":
            return connection.named_event("status", job_to_json(event.status), event.number)
        case "chunk":
            return connection.named_event("chunk", chunk_to_json(event.chunk), event.number)
        case _:
            return connection.named_event("restarted", {"attempt": event.restarted.attempt}, event.number)
