"""The routes."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from octet.rpc.calls import CallerGone
from octet.rpc.refusal import Refusal
from octet.sdk.receipt import Receipt
from octet.v1 import inference_pb2 as wire
from router.decide.policy import Policy
from router.http import asking
from router.http.asking import ask_all, while_there
from router.http.body import Bodies
from router.http.choice import Choice
from router.http.connection import abort
from router.http.event_stream import EventStream
from router.http.fault import SERVER, Fault, fault_of, unknown_model
from router.http.infer import Infer
from router.http.jobs import job_routes
from router.http.models import model_ids
from router.http.openai_chat import chat_order
from router.http.openai_completion import completion_order
from router.http.openai_objects import Objects
from router.http.order import Order
from router.http.strict_json import parse_object
from router.jobs.jobs import Jobs
from router.reception.reception import Reception
from router.reception.trace import HEADER, STATE
from router.replicas.fleet import Fleet
from router.service.service import TraceHeaders

_log = logging.getLogger(__name__)
_ID_BYTES = 16
_ESCAPES = 2
"""A text takes more bytes in JSON than on Octet's own wire."""
_BODIES_TOGETHER = 64 << 20
_PREFIXES = ("chatcmpl-", "cmpl-")
MakeOrder = Callable[[dict[str, Any], str], Order]


class Service(asking.Service, Protocol):
    """The router's, as every door sees it."""

    policy: Policy
    reception: Reception
    draining: bool

    async def receipt(self, request_id: str) -> wire.Receipt: ...


class App:
    """An ASGI application. Belongs to the event loop."""

    def __init__(
        self,
        service: Service,
        fleet: Fleet,
        is_warm: Callable[[], bool],
        wall_ms: Callable[[], int],
        jobs: Jobs,
    ) -> None:
        """`wall_ms` is milliseconds since 1970, for people."""
        self._service = service
        self._fleet = fleet
        self._is_warm = is_warm
        self._wall_ms = wall_ms
        self._created = wall_ms() // 1000
        self._bodies = Bodies(_ESCAPES * service.reception.limits.request_bytes, _BODIES_TOGETHER)
        self.routes = [
            Route("/v1/chat/completions", _Answers(self, chat_order), methods=["POST"]),
            Route("/v1/completions", _Answers(self, completion_order), methods=["POST"]),
            Route("/v1/infer", Infer(service, self._bodies), methods=["POST"]),
            *job_routes(jobs, self._bodies),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{model:path}", self._model, methods=["GET"]),
            Route("/v1/receipts/{request_id}", self._receipt, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
        ]
        self._starlette = Starlette(routes=self.routes, exception_handlers={HTTPException: _unrouted, Fault: _refused})
        self._starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every response has an id, and whatever goes wrong has a status."""
        request_id = secrets.token_hex(_ID_BYTES)
        scope["request_id"] = request_id
        name = (b"x-request-id", request_id.encode())
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), name]
            await send(message)

        try:
            await self._starlette(scope, receive, send_named)
        except CallerGone:
            await abort(scope, receive)
        except asyncio.CancelledError:
            await _last_words(
                Fault(503, "this router is ending", kind=SERVER, code="draining"), scope, receive, send_named, started
            )
        except Exception:
            _log.error("%s failed", request_id, exc_info=True)
            fault = Fault(500, "the router failed; its log says more", kind=SERVER, code="internal")
            await _last_words(fault, scope, receive, send_named, started)

    async def answer(self, make_order: MakeOrder, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Fault, CallerGone."""
        request = Request(scope, receive)
        order = make_order(parse_object(await self._bodies.read(request.headers, receive)), scope["request_id"])
        objects = Objects(order, scope["request_id"], self._wall_ms() // 1000)
        trace = _trace(request)
        if order.stream:
            stall = self._service.policy.ensemble.dispatch.stall_seconds
            await EventStream(order, objects, scope, receive, send, stall).run(self._service, trace)
            return
        choices = [Choice(index, keeps=True) for index in range(len(order.requests))]
        await while_there(receive, ask_all(self._service, order, choices, trace, _nobody))
        headers = {"x-octet-specialist": choices[0].specialist}
        await JSONResponse(objects.whole(choices), headers=headers)(scope, receive, send)

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
        asked: str = request.path_params["request_id"]
        for prefix in _PREFIXES:
            asked = asked.removeprefix(prefix)
        try:
            receipt = await self._service.receipt(asked)
        except Refusal as refusal:
            raise fault_of(refusal, {}) from None
        return JSONResponse(Receipt.from_wire(receipt).to_dict())

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        if self._service.draining:
            return JSONResponse({"status": "draining"}, 503)
        if not self._is_warm():
            return JSONResponse({"status": "starting", "waiting_for": list(self._fleet.waiting_for)}, 503)
        return JSONResponse({"status": "ready"})


class _Answers:
    """An endpoint that writes its own response: a class, which Starlette hands the connection itself."""

    def __init__(self, app: App, make_order: MakeOrder) -> None:
        self._app = app
        self._make_order = make_order

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app.answer(self._make_order, scope, receive, send)


async def _nobody(choice: Choice, event: wire.InferEvent) -> None:
    """The choice has heard it."""


async def _last_words(
    fault: Fault, scope: Scope, receive: Receive, send: Callable[[Message], Awaitable[None]], started: bool
) -> None:
    if started:
        await abort(scope, receive)
    else:
        await _response(fault)(scope, receive, send)


def _trace(request: Request) -> TraceHeaders:
    return request.headers.get(HEADER), ",".join(request.headers.getlist(STATE))


def _response(fault: Fault) -> Response:
    return JSONResponse(fault.envelope(), fault.status, headers=fault.headers)


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, Fault):
        raise error
    return _response(error)


async def _unrouted(request: Request, error: Exception) -> Response:
    """No such route, or not by this method."""
    if not isinstance(error, HTTPException):
        raise error
    allowed = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow")
    if error.status_code == 405:
        message = f"{request.method} is not for this path; use {allowed}"
        return _response(Fault(405, message, code="method_not_allowed", headers=error.headers))
    return _response(Fault(error.status_code, f"there is nothing at {request.url.path[:100]}", code="not_found"))
