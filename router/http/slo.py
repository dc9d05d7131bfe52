"""`GET /v1/slo`, and the same in one line beside every answer of a specialist."""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octet.rpc.plain import plain
from octet.rpc.refusal import Refusal
from octet.v1 import operator_pb2 as wire
from router.http.fault import fault_of
from router.slo.header import NAME
from router.slo.slos import Slos

_SPECIALIST = b"x-octet-specialist"
_NAME = NAME.encode()
Headers = Iterable[tuple[bytes, bytes]]


def slo_route(slos: Slos) -> Route:
    async def tell(request: Request) -> Response:
        """Raises Fault."""
        specialist = request.query_params.get("specialist", "")
        try:
            found = [slos.of(specialist)] if specialist else slos.all()
        except Refusal as refusal:
            raise fault_of(refusal, {}) from None
        return JSONResponse(plain(wire.GetSloResponse(slos=found)))

    return Route("/v1/slo", tell, methods=["GET"])


def slo_headers(headers: Headers, slos: Slos) -> list[tuple[bytes, bytes]]:
    """Of the specialist that a response names."""
    for name, value in headers:
        if name == _SPECIALIST:
            header = slos.header(value.decode())
            return [(_NAME, header.encode())] if header else []
    return []
