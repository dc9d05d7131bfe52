"""Breakers, knobs, lanes, replicas and the audit: the same checks and the same changes as over gRPC."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octet.rpc.plain import plain
from octet.rpc.refusal import Refusal
from octet.v1 import operator_pb2 as wire
from router.http.body import Bodies
from router.http.fault import fault_of
from router.http.fields import Fields
from router.http.operator.query import whole
from router.http.operator.receipts import receipt_routes
from router.http.own_body import only
from router.http.strict_json import parse_object
from router.operator.desk import Desk
from router.operator.limits import REQUEST_BYTES

NAMES = {"change.who": "who", "change.why": "why"}
PRIVATE = {"cache-control": "no-store"}
"""Of nobody else's business."""
_BODIES = 16
"""Read at once."""
_SIGNED = ("who", "why")
Serve = Callable[[Any], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Change:
    """One route that changes something."""

    path: str
    """With the name of what is changed, where it stands there, called as on the wire."""
    ask: type[Message]
    fields: tuple[str, ...] = ()
    """Texts of the body, called as on the wire."""


CHANGES: dict[str, Change] = {
    "hold_breaker": Change("/v1/breakers/{specialist}/hold", wire.HoldBreakerRequest, ("hold",)),
    "release_breaker": Change("/v1/breakers/{specialist}/release", wire.ReleaseBreakerRequest),
    "set_knob": Change("/v1/knobs/set", wire.SetKnobRequest, ("name",)),
    "release_knob": Change("/v1/knobs/release", wire.ReleaseKnobRequest, ("name",)),
    "load_adapter": Change("/v1/lanes/{specialist}/load", wire.LoadLaneRequest, ("path", "name")),
    "promote": Change("/v1/lanes/{specialist}/promote", wire.PromoteLaneRequest, ("name",)),
    "roll_back": Change("/v1/lanes/{specialist}/roll_back", wire.RollBackLaneRequest),
    "drain": Change("/v1/replicas/{replica}/drain", wire.DrainReplicaRequest),
    "undrain": Change("/v1/replicas/{replica}/undrain", wire.UndrainReplicaRequest),
}
"""By what the desk calls them."""


def operator_routes(desk: Desk) -> list[Route]:
    looks, bodies = _Looks(desk), Bodies(REQUEST_BYTES, _BODIES * REQUEST_BYTES)
    return [
        Route("/v1/breakers", looks.breakers, methods=["GET"]),
        Route("/v1/knobs", looks.knobs, methods=["GET"]),
        Route("/v1/lanes", looks.lanes, methods=["GET"]),
        Route("/v1/replicas", looks.replicas, methods=["GET"]),
        Route("/v1/audit", looks.audit, methods=["GET"]),
        *(_route(change, getattr(desk, name), bodies) for name, change in CHANGES.items()),
        *receipt_routes(desk),
    ]


class _Looks:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def breakers(self, _: Request) -> Response:
        return await told(self._desk.list_breakers(wire.ListBreakersRequest()))

    async def knobs(self, _: Request) -> Response:
        return await told(self._desk.list_knobs(wire.ListKnobsRequest()))

    async def lanes(self, request: Request) -> Response:
        specialist = request.query_params.get("specialist", "")
        return await told(self._desk.list_lanes(wire.ListLanesRequest(specialist=specialist)))

    async def replicas(self, _: Request) -> Response:
        return await told(self._desk.list_replicas(wire.ListReplicasRequest()))

    async def audit(self, request: Request) -> Response:
        subject = request.query_params.get("subject", "")
        ask = wire.ListAuditRequest(most=whole(request, "most"), subject=subject)
        try:
            with self._desk.readers.one():
                entries = await self._desk.audit(ask)
        except Refusal as refusal:
            raise fault_of(refusal, {}) from None
        return JSONResponse({"entries": list(map(plain, entries))}, headers=PRIVATE)


async def told(answer: Awaitable[Message]) -> Response:
    """Raises Fault."""
    try:
        return JSONResponse(plain(await answer), headers=PRIVATE)
    except Refusal as refusal:
        raise fault_of(refusal, NAMES) from None


def _route(change: Change, serve: Serve, bodies: Bodies) -> Route:
    async def make(request: Request) -> Response:
        body = parse_object(await bodies.read(request))
        return await told(serve(_asked(change, Fields(body), request.path_params)))

    return Route(change.path, make, methods=["POST"])


def _asked(change: Change, fields: Fields, named: dict[str, Any]) -> Any:
    """Raises Fault. What is left out is for the desk to miss; but no number would be a number."""
    numbers = ("value",) if change.ask is wire.SetKnobRequest else ()
    only(fields, (*change.fields, *numbers, *_SIGNED))
    ask: Any = change.ask(**named)
    for name in change.fields:
        setattr(ask, name, fields.text(name) or "")
    for name in numbers:
        setattr(ask, name, fields.needed_number(name))
    ask.change.CopyFrom(wire.Change(**{name: fields.text(name) or "" for name in _SIGNED}))
    return ask
