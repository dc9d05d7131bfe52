"""`POST /v1/infer`: a request in Octet's own words, and all that is known of its answer."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from octet.rpc.calls import CallerGone
from octet.rpc.refusal import Refusal
from octet.sdk.receipt import Receipt
from octet.v1 import inference_pb2 as wire
from router.decide.policy import Policy
from router.http import asking
from router.http.asking import trace_of, while_there
from router.http.body import Bodies
from router.http.connection import abort
from router.http.event_stream import SLACK_SECONDS, last_event
from router.http.fault import fault_of
from router.http.fields import Fields
from router.http.logprobs import token_told
from router.http.outlet import Outlet
from router.http.own_body import NAMES, request_of
from router.http.server_events import named_event
from router.http.strict_json import parse_object
from router.receipts.receipt import METADATA_KEY
from router.said import Said
from router.service.service import TraceHeaders


class Service(asking.Service, Protocol):
    policy: Policy


class Infer:
    """An endpoint that writes its own response: a class, which Starlette hands the connection itself."""

    def __init__(self, service: Service, bodies: Bodies) -> None:
        self._service = service
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Fault, CallerGone."""
        request = Request(scope, receive)
        body = parse_object(await self._bodies.read(request))
        stream = Fields(body).flag("stream")
        asked = request_of(body, "stream")
        asked.request_id = scope["request_id"]
        trace = trace_of(request)
        if stream:
            patience = self._service.policy.ensemble.dispatch.stall_seconds + SLACK_SECONDS
            await self._stream(asked, trace, Outlet(scope, send, patience), scope, receive)
        else:
            response = await self._whole(asked, trace, receive)
            await response(scope, receive, send)

    async def _whole(self, asked: wire.InferRequest, trace: TraceHeaders, receive: Receive) -> JSONResponse:
        heard = _Heard()
        try:
            await while_there(receive, self._ask(asked, trace, heard.write))
        except Refusal as refusal:
            return _failed(refusal, asked.request_id, heard.said)
        content = _answer(heard.said, heard.receipt, asked)
        return JSONResponse(content, headers={"x-octet-specialist": heard.receipt.specialist})

    async def _stream(
        self, asked: wire.InferRequest, trace: TraceHeaders, outlet: Outlet, scope: Scope, receive: Receive
    ) -> None:
        async def write(raw: bytes) -> None:
            event = wire.InferEvent.FromString(raw)
            headers = {"x-octet-specialist": event.routed.specialist} if event.HasField("routed") else None
            await outlet.say(_event(event), headers)

        try:
            await while_there(receive, self._ask(asked, trace, write))
            await outlet.end()
        except Refusal as refusal:
            fault = fault_of(refusal, NAMES)
            if not outlet.is_open:
                raise fault from None
            last = named_event("error", {**fault.envelope(), "partial": True})
            await last_event(last, fault, outlet, scope, receive)
        except (CallerGone, TimeoutError):
            await abort(scope, receive)

    async def _ask(self, asked: wire.InferRequest, trace: TraceHeaders, write: Any) -> None:
        await self._service.answer(asked, None, trace, write)


class _Heard:
    def __init__(self) -> None:
        self.said = Said()
        self.receipt = wire.Receipt()

    async def write(self, raw: bytes) -> None:
        event = wire.InferEvent.FromString(raw)
        if event.HasField("chunk"):
            self.said.hear(event.chunk)
        elif event.HasField("receipt"):
            self.receipt = event.receipt


def _answer(said: Said, message: wire.Receipt, asked: wire.InferRequest) -> dict[str, Any]:
    receipt = Receipt.from_wire(message)
    usage = message.usage
    logprobs = {"logprobs": _logprobs(said.logprobs)} if asked.sampling.HasField("num_logprobs") else {}
    return {
        "id": receipt.request_id,
        "text": said.text,
        "tool_calls": [_call(each) for each in said.tool_calls],
        **logprobs,
        **_end(receipt),
        "specialist": receipt.specialist,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "cache_hit_tokens": usage.cache_hit_tokens,
        },
        "receipt": receipt.to_dict(),
    }


def _end(receipt: Receipt) -> dict[str, Any]:
    return {
        "finish_reason": None if receipt.usage is None else receipt.usage.finish_reason,
        "partial": False,
        "validation": None if receipt.validation is None else asdict(receipt.validation),
    }


def _failed(refusal: Refusal, request_id: str, said: Said) -> JSONResponse:
    """Raises Fault where there is nothing to tell but what went wrong."""
    fault = fault_of(refusal, NAMES)
    if fault.status != 504 and not said.num_bytes:
        raise fault
    raw = dict(refusal.beside).get(METADATA_KEY)
    receipt = None if raw is None else Receipt.from_wire(wire.Receipt.FromString(raw)).to_dict()
    beside = {"id": request_id, "text": said.text, "partial": True, "receipt": receipt}
    return JSONResponse({**fault.envelope(), **beside}, fault.status, headers=fault.headers)


def _event(event: wire.InferEvent) -> bytes:
    if event.HasField("chunk"):
        return named_event("chunk", chunk_told(event.chunk))
    if event.HasField("routed"):
        return named_event("routed", {"receipt": Receipt.from_wire(event.routed).to_dict()})
    receipt = Receipt.from_wire(event.receipt)
    return named_event("receipt", {**_end(receipt), "receipt": receipt.to_dict()})


def chunk_told(chunk: wire.Chunk) -> Mapping[str, Any]:
    told: dict[str, Any] = {"text": chunk.text}
    if chunk.tool_calls:
        told["tool_calls"] = [
            {"index": each.index, "id": each.id, "name": each.name, "arguments": each.arguments}
            for each in chunk.tool_calls
        ]
    if chunk.logprobs:
        told["logprobs"] = _logprobs(chunk.logprobs)
    return told


def _call(call: wire.ToolCall) -> dict[str, str]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _logprobs(logprobs: Iterable[wire.TokenLogprobs]) -> list[dict[str, Any]]:
    return [
        {**token_told(each.piece, each.chosen), "top": [token_told(top.piece, top.logprob) for top in each.top]}
        for each in logprobs
    ]
