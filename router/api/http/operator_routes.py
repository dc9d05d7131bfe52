"""Routes for operators: state, changes, the audit log, receipts, the overview, SLOs, metrics, and the dashboard's page.

The page needs no key; it fetches its data with the operator's key.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from google.protobuf.message import Message
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octet.client.receipts import Receipt
from octet.client.stages import request_stages
from octet.limits import shorten
from octet.rpc.messages import message_to_json
from octet.telemetry.exposition import ExpositionText
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire
from router.api.http.body import BodyReader
from router.api.http.connection import ConnectionRoute, EventStreamWriter, raw_event
from router.api.http.errors import JsonResponse, invalid_field, rename_fields, unknown_path_error
from router.api.http.fields import parse_whole_number, to_struct
from router.api.operations import CHECKS, REQUEST_BYTES, OperatorApi
from router.observe.overview.overview import Overviews
from router.quality.slo import SLO_HEADER, SloTracker
from router.request import current_grant

OVERVIEW_STALL_SECONDS = 20.0  # a caller that reads nothing for this long is disconnected
_MAX_DIGITS = 32
_SPECIALIST_HEADER = b"x-octet-specialist"
PRIVATE_HEADERS = {"cache-control": "no-store"}
CHANGE_FIELD_NAMES = {"change.who": "who", "change.why": "why"}
_RECEIPT_FIELD_NAMES = {"most": "limit", "before_unix_ms": "before"}
_MAX_CONCURRENT_BODIES = 16
_RECEIPTS_PER_TURN = 8  # receipts encoded in one turn of the event loop: about a millisecond
INDEX_PAGE = "index.html"
PAGE_HEADERS: Mapping[str, str] = {  # no inline code, no foreign sources, no frames, and no text that becomes markup
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_MEDIA_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_Name = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 256})]
_AdapterName = Annotated[str, Meta(extra_json_schema={"maxLength": 40})]


class Signature(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of an operator's change: its reason and its author. The operator API refuses missing fields."""

    why: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 2048})] | None = None
    who: Annotated[str, Meta(extra_json_schema={"maxLength": 256})] | None = None


class BreakerHold(Signature, kw_only=True):
    hold: Annotated[str, Meta(extra_json_schema={"enum": ["open", "closed"]})] | None = None


class KnobRelease(Signature, kw_only=True):
    name: _Name | None = None


class KnobSetting(KnobRelease, kw_only=True):
    value: float


class LanePromotion(Signature, kw_only=True):
    name: _AdapterName | None = None


class LaneLoad(LanePromotion, kw_only=True):
    path: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 1024})] | None = None


class ModelRefresh(Signature, kw_only=True):
    model: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 1024})] | None = None
    digest: Annotated[str, Meta(extra_json_schema={"maxLength": 64})] | None = None


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """A route for an operator's change. Path parameters and body, except `why` and `who`, are fields of `message`."""

    path: str
    message: type[Message]
    body: type[Signature] = Signature

    def to_wire(self, body: dict[str, Any], path_params: Mapping[str, Any]) -> Any:
        given = msgspec.structs.asdict(to_struct(body, self.body))
        change = wire.Change(why=given.pop("why"), who=given.pop("who"))
        return self.message(**path_params, **given, change=change)


OPERATOR_CHANGES: dict[str, OperatorChange] = {  # by the names of the operator API's methods
    "hold_breaker": OperatorChange("/v1/breakers/{specialist}/hold", wire.HoldBreakerRequest, BreakerHold),
    "release_breaker": OperatorChange("/v1/breakers/{specialist}/release", wire.ReleaseBreakerRequest),
    "relearn_floor": OperatorChange("/v1/breakers/{specialist}/relearn", wire.RelearnFloorRequest),
    "set_knob": OperatorChange("/v1/knobs/set", wire.SetKnobRequest, KnobSetting),
    "release_knob": OperatorChange("/v1/knobs/release", wire.ReleaseKnobRequest, KnobRelease),
    "load_adapter": OperatorChange("/v1/lanes/{specialist}/load", wire.LoadLaneRequest, LaneLoad),
    "promote": OperatorChange("/v1/lanes/{specialist}/promote", wire.PromoteLaneRequest, LanePromotion),
    "roll_back": OperatorChange("/v1/lanes/{specialist}/roll_back", wire.RollBackLaneRequest),
    "refresh": OperatorChange("/v1/lanes/{specialist}/refresh", wire.RefreshModelRequest, ModelRefresh),
    "drain": OperatorChange("/v1/replicas/{replica}/drain", wire.DrainReplicaRequest),
    "undrain": OperatorChange("/v1/replicas/{replica}/undrain", wire.UndrainReplicaRequest),
}


def operator_routes(api: OperatorApi) -> list[Route]:
    bodies = BodyReader(REQUEST_BYTES, _MAX_CONCURRENT_BODIES * REQUEST_BYTES)

    def listing(path: str, read: Callable[[Any], Awaitable[Message]], message: type[Message], *fields: str) -> Route:
        """Make a GET route. `fields` are the fields of the message that come from query parameters."""

        async def endpoint(request: Request) -> Response:
            return await _message_response(read(message(**{name: _query(request, name) for name in fields})))

        return Route(path, endpoint, methods=["GET"])

    def change_route(change: OperatorChange) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await bodies.read_object(request)
            return await _message_response(api.change(change.to_wire(body, request.path_params)))

        return Route(change.path, endpoint, methods=["POST"])

    async def audit(request: Request) -> Response:
        message = wire.ListAuditRequest(most=_query_integer(request, "most"), subject=_query(request, "subject"))
        with api.readers.enter():
            entries = await api.audit(message)
        return JsonResponse({"entries": list(map(message_to_json, entries))}, headers=PRIVATE_HEADERS)

    async def receipts(request: Request) -> Response:
        message = wire.ListReceiptsRequest(
            most=_query_integer(request, "limit"),
            before_unix_ms=_query_integer(request, "before"),
            **{name: _query(request, name) for name in ("specialist", "outcome", "tenant")},
        )
        with rename_fields(_RECEIPT_FIELD_NAMES), api.readers.enter():
            return _json_response(await _receipts_to_json(await api.receipts(message)))

    async def story(request: Request) -> Response:
        """Explain a request. Its id may be a query parameter, because not every id can be part of a path."""
        request_id = request.path_params.get("request_id") or _query(request, "request_id")
        if not request_id:
            raise invalid_field("request_id", "the id of a request", "no id")
        story = await api.explain(wire.ExplainRequest(request_id=request_id, tenant=_query(request, "tenant")))
        receipt = Receipt.from_wire(story.receipt)
        own = {"receipt": receipt.to_dict(), "stages": request_stages(receipt).to_dict()}
        return JsonResponse({**message_to_json(story), **own}, headers=PRIVATE_HEADERS)

    return [
        listing("/v1/breakers", api.list_breakers, wire.ListBreakersRequest),
        listing("/v1/knobs", api.list_knobs, wire.ListKnobsRequest),
        listing("/v1/lanes", api.list_lanes, wire.ListLanesRequest, "specialist"),
        listing("/v1/replicas", api.list_replicas, wire.ListReplicasRequest),
        Route("/v1/audit", audit, methods=["GET"]),
        *map(change_route, OPERATOR_CHANGES.values()),
        Route("/v1/receipts", receipts, methods=["GET"]),
        Route("/v1/receipts/{request_id}/story", story, methods=["GET"]),
        Route("/v1/story", story, methods=["GET"]),
    ]


async def _message_response(answer: Awaitable[Message]) -> Response:
    return JsonResponse(message_to_json(await answer), headers=PRIVATE_HEADERS)


def _query(request: Request, name: str) -> str:
    return request.query_params.get(name, "")


def _query_integer(request: Request, name: str) -> int:
    return parse_whole_number(name, request.query_params.get(name, "0"))


async def _receipts_to_json(messages: Sequence[bytes]) -> bytes:
    """Encode receipts, a few per turn of the event loop: hundreds in one turn would delay other callers."""
    parts = []
    for number, raw in enumerate(messages):
        if number % _RECEIPTS_PER_TURN == 0:
            await asyncio.sleep(0)
        receipt = Receipt.from_wire(inference_pb2.Receipt.FromString(raw))
        parts.append(msgspec.json.encode(receipt.to_dict()))
    return b'{"receipts":[' + b",".join(parts) + b"]}"


WriteMetrics = Callable[[str], Awaitable[ExpositionText]]  # writes metrics in the format that an Accept header requests


@dataclass(frozen=True, slots=True)
class MonitoringSources:
    """The parts of the router that operator and monitoring routes read."""

    operator: OperatorApi
    overviews: Overviews
    slos: SloTracker
    responses: Counter[tuple[str, int]]  # HTTP responses by route and status, counted by the application
    metrics: WriteMetrics
    replica_metrics: WriteMetrics


def monitoring_routes(sources: MonitoringSources) -> list[Route]:
    overviews, slos = sources.overviews, sources.slos

    async def overview(_: Request) -> Response:
        return _json_response(await overviews.now().json())

    async def history(request: Request) -> Response:
        seconds = _parse_seconds(request.query_params.get("last_seconds", "0"))
        return _json_response(overviews.history.json(overviews.since_ms(seconds)))

    async def slo(request: Request) -> Response:
        specialist = _query(request, "specialist")
        found = [slos.of(specialist)] if specialist else slos.all()
        return JsonResponse(message_to_json(wire.GetSloResponse(slos=found)))

    def scraped(path: str, write: WriteMetrics) -> Route:
        async def endpoint(request: Request) -> Response:
            text = await write(request.headers.get("accept", ""))
            return Response(text.body, headers={"content-type": text.content_type})

        return Route(path, endpoint, methods=["GET"])

    return [
        Route("/v1/overview", overview, methods=["GET"]),
        ConnectionRoute("/v1/overview/events", partial(_watch_overview, overviews), "GET"),
        Route("/v1/history", history, methods=["GET"]),
        Route("/v1/slo", slo, methods=["GET"]),
        scraped("/metrics", sources.metrics),
        scraped("/metrics/replicas", sources.replica_metrics),
    ]


def slo_headers(headers: Iterable[tuple[bytes, bytes]], slos: SloTracker) -> list[tuple[bytes, bytes]]:
    for name, value in headers:
        if name == _SPECIALIST_HEADER:
            header = slos.header(value.decode())
            return [(SLO_HEADER.encode(), header.encode())] if header else []
    return []


async def _watch_overview(overviews: Overviews, scope: Scope, receive: Receive, send: Send) -> None:
    stream = EventStreamWriter(scope, receive, send, OVERVIEW_STALL_SECONDS)

    async def follow() -> None:
        """Send overviews until the caller disconnects or loses its access. A HEAD request gets only the headers."""
        if scope["method"] == "HEAD":
            await stream.send(b"")
            await stream.end()
            return
        grant = current_grant()
        async with aclosing(overviews.follow()) as frames:
            frame = await grant.while_valid(lambda: anext(frames))
            await stream.send(raw_event("history", overviews.history.json()))
            while True:
                await stream.send(raw_event("overview", await frame.json()))
                frame = await grant.while_valid(lambda: anext(frames))

    await stream.run(follow())


def _json_response(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers=PRIVATE_HEADERS)


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text) if text.isascii() and len(text) <= _MAX_DIGITS else None
    except ValueError:
        seconds = None
    if seconds is None:
        raise invalid_field("last_seconds", "a number of seconds", shorten(text))
    return CHECKS.in_range("last_seconds", seconds)


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media_type: str
    etag: str  # a digest of the content, quoted as in a header


def page_files() -> Mapping[str, PageFile]:
    """Return all files of the dashboard by name. No request can access any other file."""
    found = {}
    for each in sorted(files("router.api.http").joinpath("page").iterdir(), key=lambda file: file.name):
        media_type = _MEDIA_TYPES.get(each.name.rpartition(".")[2])
        if media_type is not None:
            content = each.read_bytes()
            found[each.name] = PageFile(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
    return MappingProxyType(found)


def dashboard_routes() -> list[Route]:
    found = page_files()

    async def page(request: Request) -> Response:
        return _file_response(found[INDEX_PAGE], request)

    async def file(request: Request) -> Response:
        name: str = request.path_params["file"]
        if not name:
            return RedirectResponse("../dashboard", 307)
        content = found.get(name) or found.get(f"{name}.html")  # `runbook` is a page of its own
        if content is None:
            raise unknown_path_error(request.url.path)
        return _file_response(content, request)

    async def root(_: Request) -> Response:
        return RedirectResponse("dashboard", 307)

    found_at = {"/": root, "/dashboard": page, "/dashboard/{file:path}": file}
    return [Route(path, endpoint, methods=["GET"]) for path, endpoint in found_at.items()]


def _file_response(file: PageFile, request: Request) -> Response:
    """Return a file that the browser must revalidate, so that no page mixes two versions after an upgrade."""
    headers = {**PAGE_HEADERS, "cache-control": "no-cache", "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
