"""The ASGI application: route table, request ids, error responses, and the routes for models, receipts and health."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from octet import __version__
from octet.client.receipts import Receipt
from octet.limits import MAX_PROMPT_BYTES, shorten
from octet.rpc.drain_gate import DrainGate
from octet.rpc.handlers import CallerGone
from octet.rpc.refusal import Refusal
from router.api.http import errors
from router.api.http import operator_routes as operator
from router.api.http.access_control import ROUTE_KEY, guard_routes
from router.api.http.anthropic import (
    ANTHROPIC_VERSION,
    AnthropicModel,
    AnthropicWriter,
    count_tokens,
    list_anthropic_models,
    parse_message_request,
)
from router.api.http.body import BodyReader
from router.api.http.common_fields import list_model_names
from router.api.http.completions import CompletionEndpoint
from router.api.http.connection import ConnectionRoute, abort_connection, error_response
from router.api.http.embeddings import create_embeddings
from router.api.http.infer import infer, job_routes
from router.api.http.openai_requests import parse_chat_request, parse_completion_request
from router.api.http.openai_responses import ModelList, ModelObject, OpenAIWriter
from router.api.http.openapi import openapi_document
from router.api.http.responses import ResponsesApi
from router.dispatch.replicas.fleet import Fleet
from router.jobs.manager import JobManager
from router.request import CallTicket, start_call_ticket, start_call_trace
from router.routing.validation import MAX_TIMEOUT_MS, REQUEST_BYTES
from router.serving import RequestServer
from router.store.store import Store

_log = logging.getLogger(__name__)
_ID_BYTES = 16
_TICKET, _WAIT = errors.TICKET_HEADER.encode(), errors.WAIT_HEADER.encode()
_MAX_DIGITS = 12  # of the time for which a caller waits for a place
_MAX_BODY_BYTES = 2 * REQUEST_BYTES  # JSON may take three bytes for each byte of a letter that is not ASCII
_MAX_CONCURRENT_BODY_BYTES = 64 << 20
_PROBES = (
    "/healthz",
    "/ping",
    "/readyz",
    "/health",
    "/metrics",
)  # paths served while the drain gate is closed
_CLOSE = ((b"connection", b"close"),)  # sent while draining: callers open their next connection to another router


@dataclass(eq=False)
class App:
    """The router's ASGI application. Used only on the event loop."""

    _service: RequestServer
    _fleet: Fleet
    _is_warm: Callable[[], bool]
    _jobs: JobManager
    _store: Store
    _sources: operator.MonitoringSources
    _drain_gate: DrainGate

    def __post_init__(self) -> None:
        self._created = self._service.wall_ms() // 1000
        service, sources = self._service, self._sources
        self._bodies = bodies = BodyReader(_MAX_BODY_BYTES, _MAX_CONCURRENT_BODY_BYTES, MAX_PROMPT_BYTES)
        many_texts = BodyReader(_MAX_BODY_BYTES, _MAX_CONCURRENT_BODY_BYTES)
        openai = partial(CompletionEndpoint, OpenAIWriter, service, bodies)
        anthropic = CompletionEndpoint(AnthropicWriter, service, bodies, parse_message_request)
        self.routes = [
            ConnectionRoute("/v1/chat/completions", openai(parse_chat_request), "POST"),
            ConnectionRoute("/v1/completions", openai(parse_completion_request), "POST"),
            ConnectionRoute("/v1/embeddings", partial(create_embeddings, service, many_texts), "POST"),
            *ResponsesApi(service, bodies, self._store).routes(),
            ConnectionRoute("/v1/messages", anthropic, "POST"),
            ConnectionRoute("/v1/messages/count_tokens", partial(count_tokens, service, bodies), "POST"),
            ConnectionRoute("/v1/infer", partial(infer, service, self._jobs, bodies), "POST"),
            *job_routes(self._jobs, bodies),
            Route("/v1/models", self._list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", self._get_model, methods=["GET"]),
            *operator.operator_routes(sources.operator),
            Route("/v1/receipts/{request_id}", self._get_receipt, methods=["GET"]),
            *operator.monitoring_routes(sources),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._readiness, methods=["GET"]),
            Route("/ping", self._health, methods=["GET"]),
            Route("/health", self._readiness, methods=["GET"]),
            Route("/version", self._version, methods=["GET"]),
            *operator.dashboard_routes(),
        ]
        guard_routes(self.routes, self._service.gate)
        handlers = dict.fromkeys((HTTPException, errors.ApiError, Refusal), _error_response)
        self._table = ExceptionMiddleware(RouteTable(self.routes), handlers=handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = scope["request_id"] = secrets.token_hex(_ID_BYTES)
        scope["app"] = self  # without an app in the scope, Starlette answers unknown paths itself
        trace = start_call_trace()
        has_started, is_anthropic = False, errors.is_anthropic_call(scope)

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                self._sources.responses[scope.get(ROUTE_KEY, ""), message["status"]] += 1
                headers = message.get("headers", ())
                slo = operator.slo_headers(headers, self._sources.slos)
                close = _CLOSE if self._service.draining else ()
                names = (b"x-request-id", b"request-id") if is_anthropic else (b"x-request-id",)
                ids = [(name, request_id.encode()) for name in names]
                message["headers"] = [*headers, *ids, *slo, *trace.headers(), *close]
            await send(message)

        async def send_error(error: errors.ApiError) -> None:
            if has_started:
                await abort_connection(scope, receive)
            else:
                await error_response(error, scope)(scope, receive, send_with_headers)

        try:
            start_call_ticket(_read_ticket(scope))
            if scope["path"] not in _PROBES:
                await self._drain_gate.enter()
            await self._table(scope, receive, send_with_headers)
        except errors.ApiError as error:
            await send_error(error)
        except CallerGone:
            await abort_connection(scope, receive)
        except asyncio.CancelledError:
            await send_error(errors.ApiError(503, "this router is shutting down", kind=errors.SERVER, code="draining"))
        except Exception:
            _log.error("the request %s failed", request_id, exc_info=True, extra={"request_id": request_id})
            message = "the router failed; see its log"
            await send_error(errors.ApiError(500, message, kind=errors.SERVER, code="internal"))

    async def _list_models(self, request: Request) -> Response:
        names = self._model_names()
        if ANTHROPIC_VERSION in request.headers:
            return errors.JsonResponse(list_anthropic_models(names, self._created, request.query_params))
        return errors.JsonResponse(ModelList([ModelObject(name, self._created) for name in names]))

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._model_names():
            raise errors.unknown_model_error(name[:100])
        if ANTHROPIC_VERSION in request.headers:
            return errors.JsonResponse(AnthropicModel.create(name, self._created))
        return errors.JsonResponse(ModelObject(name, self._created))

    def _model_names(self) -> list[str]:
        return list(list_model_names(self._service.policy.ensemble, self._fleet.replicas))

    async def _get_receipt(self, request: Request) -> Response:
        tenant = request.query_params.get("tenant", "")
        receipt = await self._service.receipt(request.path_params["request_id"], tenant)
        return errors.JsonResponse(Receipt.from_wire(receipt).to_dict())

    async def _openapi(self, _: Request) -> Response:
        return errors.JsonResponse(openapi_document(__version__))

    async def _health(self, _: Request) -> Response:
        return errors.JsonResponse({"status": "ok"})

    async def _version(self, _: Request) -> Response:
        return errors.JsonResponse({"version": __version__})

    async def _readiness(self, _: Request) -> Response:
        if self._service.draining:
            return errors.JsonResponse({"status": "draining"}, 503)
        if not self._is_warm():
            names = {} if self._service.gate.requires_keys else {"waiting_for": list(self._fleet.waiting_for)}
            return errors.JsonResponse({"status": "starting", **names}, 503)
        return errors.JsonResponse({"status": "ready"})


async def _error_response(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        error = errors.refusal_to_error(error, operator.CHANGE_FIELD_NAMES)
    elif isinstance(error, HTTPException) and error.status_code == 405:
        headers = error.headers or {}
        message = f"{request.method} is not allowed for this path; use {headers.get('allow') or headers.get('Allow')}"
        error = errors.ApiError(405, message, code="method_not_allowed", headers=headers)
    elif isinstance(error, HTTPException):
        error = errors.unknown_path_error(request.url.path)
    if not isinstance(error, errors.ApiError):
        raise error
    return error_response(error, request.scope)


def _read_ticket(scope: Scope) -> CallTicket:
    given = {name: value for name, value in scope["headers"] if name in (_TICKET, _WAIT)}
    ticket, wait = given.get(_TICKET, b"").decode("latin-1"), given.get(_WAIT)
    if wait is None:
        return CallTicket(ticket)
    if not wait.isdigit():
        limit, got = "a whole number of milliseconds", repr(shorten(wait.decode("latin-1")))
        raise errors.invalid_field(errors.WAIT_HEADER, limit, got)
    return CallTicket(ticket, min(int(wait[:_MAX_DIGITS]), MAX_TIMEOUT_MS))


class RouteTable:
    """Finds routes without path parameters in a dictionary, and others by Starlette's search. Raises HTTPException if
    no route matches."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._search = Router(routes=routes, redirect_slashes=False)
        self._fixed = {  # by method and path, the routes without parameters that no earlier route hides
            (method, route.path): route
            for route in routes
            for method in route.methods or ()
            if not route.param_convertors and _first_match(routes, method, route.path) is route
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._fixed.get((scope.get("method", ""), scope["path"]))
        if route is None or scope.get("root_path"):
            await self._search(scope, receive, send)
            return
        scope.update(router=self._search, route=route, endpoint=route.endpoint, path_params={})
        await route.app(scope, receive, send)


def _first_match(routes: Sequence[Route], method: str, path: str) -> Route:
    scope = {"type": "http", "method": method, "path": path}
    return next(route for route in routes if route.matches(scope)[0] is Match.FULL)
