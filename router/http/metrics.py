"""What Prometheus scrapes."""

from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octet.telemetry.page import Written


class Scraped(Protocol):
    async def write(self, accept: str) -> Written: ...


def metric_routes(own: Scraped, replicas: Scraped) -> list[Route]:
    async def metrics(request: Request) -> Response:
        return _response(await own.write(request.headers.get("accept", "")))

    async def replica_metrics(request: Request) -> Response:
        return _response(await replicas.write(request.headers.get("accept", "")))

    return [
        Route("/metrics", metrics, methods=["GET"]),
        Route("/metrics/replicas", replica_metrics, methods=["GET"]),
    ]


def _response(written: Written) -> Response:
    return Response(written.body, headers={"content-type": written.content_type})
