"""The routes."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from octet.rpc.calls import CallerGone
from octet.rpc.doorstep import Doorstep
from octet.rpc.refusal import Refusal
from octet.sdk.receipt import Receipt
from octet.v1 import inference_pb2 as wire
from router.dashboard.routes import dashboard_routes
from router.decide.policy import Policy
from router.http import asking
from router.http.anthropic_messages import count_order, message_order
from router.http.anthropic_telling import AnthropicTelling
from router.http.asking import ask_all, ask_count, trace_of, while_there
from router.http.body import Bodies
from router.http.choice import Choice
from router.http.connection import abort
from router.http.dialect import Dialect
from router.http.envelope import id_headers, response_of
from router.http.event_stream import EventStream
from router.http.fault import SERVER, Fault, fault_of, unknown_model
from router.http.guard import ROUTE, guard
from router.http.infer import Infer
from router.http.jobs import job_routes
from router.http.metrics import metric_routes
from router.http.models import model_ids
from router.http.openai_chat import chat_order
from router.http.openai_completion import completion_order
from router.http.openai_telling import OpenAITelling
from router.http.openapi.document import document
from router.http.operator.routes import operator_routes
from router.http.overview import overview_routes
from router.http.route_table import RouteTable
from router.http.slo import slo_headers, slo_route
from router.http.strict_json import parse_object
from router.http.windows import Windows
from router.jobs.jobs import Jobs
from router.keys.gate import Gate
from router.operator.library import ids_of
from router.reception.reception import Reception
from router.reception.traced import new_call
from router.replicas.fleet import Fleet

_log = logging.getLogger(__name__)
_ID_BYTES = 16
_ESCAPES = 2
"""A text takes more bytes in JSON than on Octet's own wire."""
_BODIES_TOGETHER = 64 << 20
_PROBES = ("/healthz", "/readyz", "/metrics")
"""Are answered while the doors are closed, too."""
_CLOSE = ((b"connection", b"close"),)
"""Of a router that ends: who asks again asks another, or a new one."""
_CHAT = Dialect(chat_order, OpenAITelling)
_COMPLETION = Dialect(completion_order, OpenAITelling)
_MESSAGES = Dialect(message_order, AnthropicTelling)


class Service(asking.Service, Protocol):
    """The router's, as every door sees it."""

    policy: Policy
    reception: Reception
    draining: bool

    async def receipt(self, request_id: str, tenant: str = "") -> wire.Receipt: ...


class App:
    """An ASGI application. Belongs to the event loop."""

    def __init__(
        self,
        service: Service,
        fleet: Fleet,
        is_warm: Callable[[], bool],
        wall_ms: Callable[[], int],
        jobs: Jobs,
        gate: Gate,
        windows: Windows,
        doorstep: Doorstep,
    ) -> None:
        """`wall_ms` is milliseconds since 1970, for people."""
        self._windows = windows
        self._doorstep = doorstep
        self._gate = gate
        self._service = service
        self._fleet = fleet
        self._is_warm = is_warm
        self._wall_ms = wall_ms
        self._created = wall_ms() // 1000
        self._bodies = Bodies(_ESCAPES * service.reception.limits.request_bytes, _BODIES_TOGETHER)
        self.routes = [
            Route("/v1/chat/completions", _Answers(self, _CHAT), methods=["POST"]),
            Route("/v1/completions", _Answers(self, _COMPLETION), methods=["POST"]),
            Route("/v1/messages", _Answers(self, _MESSAGES), methods=["POST"]),
            Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
            Route("/v1/infer", Infer(service, self._bodies), methods=["POST"]),
            *job_routes(jobs, self._bodies),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{model:path}", self._model, methods=["GET"]),
            *operator_routes(windows.desk),
            Route("/v1/receipts/{request_id}", self._receipt, methods=["GET"]),
            *overview_routes(windows.view),
            slo_route(windows.slos),
            *metric_routes(windows.metrics, windows.replica_metrics),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            *dashboard_routes(),
        ]
        guard(self.routes, gate)
        handlers = {HTTPException: _unrouted, Fault: _refused}
        self._table = ExceptionMiddleware(RouteTable(self.routes), handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every response has an id, and whatever goes wrong has a status."""
        request_id = secrets.token_hex(_ID_BYTES)
        scope["request_id"] = request_id
        scope["app"] = self  # or the table answers for itself what it does not hold
        names, call = id_headers(scope), new_call()
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._windows.responses[scope.get(ROUTE, ""), message["status"]] += 1
                headers = message.get("headers", ())
                slo = slo_headers(headers, self._windows.slos)
                last = _CLOSE if self._service.draining else ()
                message["headers"] = [*headers, *names, *slo, *call.headers(), *last]
            await send(message)

        try:
            if scope["path"] not in _PROBES:
                await self._doorstep.come()
            await self._table(scope, receive, send_named)
        except CallerGone:
            await abort(scope, receive)
        except asyncio.CancelledError:
            await _last_words(
                Fault(503, "this router is ending", kind=SERVER, code="draining"), scope, receive, send_named, started
            )
        except Exception:
            _log.error("%s failed", request_id, exc_info=True, extra={"request_id": request_id})
            fault = Fault(500, "the router failed; its log says more", kind=SERVER, code="internal")
            await _last_words(fault, scope, receive, send_named, started)

    async def answer(self, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Fault, CallerGone."""
        request = Request(scope, receive)
        request_id = scope["request_id"]
        order = dialect.order(parse_object(await self._bodies.read(request)), request_id)
        choices = [Choice(index, keeps=not order.stream) for index in range(len(order.requests))]
        telling = dialect.telling(order, choices, request_id, self._wall_ms() // 1000)
        if order.stream:
            stall = self._service.policy.ensemble.dispatch.stall_seconds
            stream = EventStream(telling, scope, receive, send, stall)
            await stream.run(self._service, order, choices, trace_of(request))
            return
        await while_there(receive, ask_all(self._service, order, choices, trace_of(request), _nobody))
        headers = {"x-octet-specialist": choices[0].specialist}
        await JSONResponse(telling.whole(), headers=headers)(scope, receive, send)

    async def _count(self, request: Request) -> Response:
        """Raises Fault, CallerGone."""
        body = await self._bodies.read(request)
        order = count_order(parse_object(body), request.scope["request_id"])
        counted = await while_there(request.receive, ask_count(self._service, order, trace_of(request)))
        return JSONResponse({"input_tokens": counted.prompt_tokens}, headers={"x-octet-specialist": counted.specialist})

    async def _models(self, _: Request) -> Response:
        ids = model_ids(self._service.policy.ensemble, self._fleet.replicas)
        return JSONResponse({"object": "list", "data": [self._described(each) for each in ids]})

    async def _model(self, request: Request) -> Response:
        asked = request.path_params["model"]
        if asked not in model_ids(self._service.policy.ensemble, self._fleet.replicas):
            raise unknown_model(asked[:100])
        return JSONResponse(self._described(asked))

    def _described(self, model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": self._created, "owned_by": "octet"}

    async def _receipt(self, request: Request) -> Response:
        """By the id of a request or of an answer."""
        tenant = request.query_params.get("tenant", "")
        try:
            receipt = await self._first_receipt(ids_of(request.path_params["request_id"]), tenant)
        except Refusal as refusal:
            raise fault_of(refusal, {}) from None
        return JSONResponse(Receipt.from_wire(receipt).to_dict())

    async def _first_receipt(self, ids: list[str], tenant: str) -> wire.Receipt:
        """Raises Refusal."""
        for request_id in ids[:-1]:
            try:
                return await self._service.receipt(request_id, tenant)
            except Refusal as refusal:
                if refusal.error.reason != wire.ERROR_REASON_UNKNOWN_REQUEST:
                    raise
        return await self._service.receipt(ids[-1], tenant)

    async def _openapi(self, _: Request) -> Response:
        return JSONResponse(document(self._service.reception.limits, version("octet")))

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        if self._service.draining:
            return JSONResponse({"status": "draining"}, 503)
        if not self._is_warm():
            names = {} if self._gate.asks else {"waiting_for": list(self._fleet.waiting_for)}
            return JSONResponse({"status": "starting", **names}, 503)
        return JSONResponse({"status": "ready"})


class _Answers:
    """An endpoint that writes its own response: a class, which Starlette hands the connection itself."""

    def __init__(self, app: App, dialect: Dialect) -> None:
        self._app = app
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app.answer(self._dialect, scope, receive, send)


async def _nobody(choice: Choice, event: wire.InferEvent) -> None:
    """The choice has heard it."""


async def _last_words(
    fault: Fault, scope: Scope, receive: Receive, send: Callable[[Message], Awaitable[None]], started: bool
) -> None:
    if started:
        await abort(scope, receive)
    else:
        await response_of(fault, scope)(scope, receive, send)


async def _refused(request: Request, error: Exception) -> Response:
    if not isinstance(error, Fault):
        raise error
    return response_of(error, request.scope)


async def _unrouted(request: Request, error: Exception) -> Response:
    """No such route, or not by this method."""
    if not isinstance(error, HTTPException):
        raise error
    allowed = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow")
    if error.status_code == 405:
        message = f"{request.method} is not for this path; use {allowed}"
        fault = Fault(405, message, code="method_not_allowed", headers=error.headers)
    else:
        fault = Fault(error.status_code, f"there is nothing at {request.url.path[:100]}", code="not_found")
    return response_of(fault, request.scope)
