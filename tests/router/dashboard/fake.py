"""A fake server that can show any state, including those that a real router seldom has."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octet.client.receipts import Receipt
from octet.rpc.messages import message_to_json
from octet.v1 import control_pb2 as control
from octet.v1 import overview_pb2 as wire
from router.api.http.access_control import check_same_origin
from router.api.http.connection import named_event
from router.api.http.errors import AUTHENTICATION, PERMISSION, ApiError, JsonResponse
from router.api.http.operator_routes import dashboard_routes
from tests.patience import PATIENCE
from tests.router.dashboard import sample_state
from tests.router.dashboard.sample_story import receipt, story

OPERATOR, CALLER = "octet-operator-key", "octet-caller-key"
_TICK, _BEAT = 0.02, 2.0


class FakeRouterState:
    """The state that the dashboard shows. The test's thread changes it, and the server's thread reads it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, overview: wire.Overview | None = None, points: int = sample_state.NUM_POINTS) -> None:
        self.overview = overview or sample_state.overview()
        self.history = sample_state.history([each.name for each in self.overview.specialists], points)
        self.asks_for_keys = False
        self.beats = False
        """Whether the time of the overview advances, as it does with a real router."""
        self.silent = False
        """Whether connections stay open without events."""
        self.down = False
        """Whether streams end and no new stream is accepted."""
        self.behind = ""
        """The Host header that a proxy sends instead of the browser's, or an empty string."""
        self.says = ""
        """The message with which every change is refused, or an empty string."""
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.changes = 0

    def change(self) -> None:
        """Publish a new overview to all streams."""
        self.overview.at_unix_ms += 1000
        self.changes += 1

    def check(self, request: Request) -> None:
        """Check the request's origin and key as the router does. Raises ApiError if the router would refuse the
        request."""
        passed_on = [(b"host", self.behind.encode())] if self.behind else []
        kept = [(name, value) for name, value in request.headers.raw if name != b"host" or not self.behind]
        check_same_origin({**request.scope, "headers": [*kept, *passed_on]}, has_keys=self.asks_for_keys)
        if not self.asks_for_keys:
            return
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if shown == CALLER:
            raise ApiError(403, "the key 'ann' may not do this", kind=PERMISSION, code="forbidden")
        if shown != OPERATOR:
            raise ApiError(401, "a key is needed", kind=AUTHENTICATION, code="invalid_api_key")


def app_of(fake: FakeRouterState) -> Starlette:
    async def events(request: Request) -> Response:
        fake.check(request)
        if fake.down:
            raise ApiError(503, "this router is ending", code="draining")
        return StreamingResponse(_overview_events(fake), media_type="text/event-stream")

    async def history(request: Request) -> Response:
        fake.check(request)
        return JSONResponse(message_to_json(fake.history))

    async def receipts(request: Request) -> Response:
        fake.check(request)
        found = [receipt(f"old-{number}") for number in range(3)]
        return JSONResponse({"receipts": [Receipt.from_wire(each).to_dict() for each in found]})

    async def path_of(request: Request) -> Response:
        fake.check(request)
        asked = request.query_params["request_id"]
        if asked == "unknown":
            raise ApiError(404, "no receipt of 'unknown' is kept", code="unknown_request")
        return JSONResponse(story(asked))

    async def change(request: Request) -> Response:
        fake.check(request)
        body = await request.json()
        fake.posted.append((request.url.path, body))
        if fake.says:
            raise ApiError(409, fake.says, code="conflict")
        _apply(fake, request.url.path, body)
        return JSONResponse({})

    return Starlette(
        routes=[
            *dashboard_routes(),
            Route("/v1/overview/events", events),
            Route("/v1/history", history),
            Route("/v1/receipts", receipts),
            Route("/v1/story", path_of),
            Route("/v1/{rest:path}", change, methods=["POST"]),
        ],
        exception_handlers={ApiError: _refused},
    )


async def _overview_events(fake: FakeRouterState) -> AsyncIterator[bytes]:
    yield named_event("history", message_to_json(fake.history))
    yield named_event("overview", message_to_json(fake.overview))
    seen, said = fake.changes, monotonic()
    while not fake.down:
        if fake.beats and monotonic() - said > _BEAT:
            fake.change()
        if fake.changes != seen and not fake.silent:
            seen, said = fake.changes, monotonic()
            yield named_event("overview", message_to_json(fake.overview))
        await asyncio.sleep(_TICK)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JsonResponse(error.envelope(), error.status)


def _apply(fake: FakeRouterState, path: str, body: dict[str, Any]) -> None:
    _, _, kind, name, *rest = path.split("/")
    what = rest[0] if rest else name
    if kind == "breakers":
        (view,) = [each for each in fake.overview.specialists if each.name == name]
        view.breaker.hold = body.get("hold", "")
        view.breaker.hold_by, view.breaker.hold_why = body.get("who", "operator"), body["why"]
    newest = fake.overview.audit[0].number if fake.overview.audit else 0
    entry = control.AuditEntry(
        number=newest + 1,
        at_unix_ms=fake.overview.at_unix_ms,
        who=body.get("who", "operator"),
        why=body["why"],
        what=f"{what}_{kind.removesuffix('s')}",
        subject=body.get("name", name),
    )
    fake.overview.audit.insert(0, entry)
    fake.change()


@contextmanager
def serving(fake: FakeRouterState) -> Iterator[str]:
    """Run a server that shows this state. Yield its URL."""
    config = uvicorn.Config(app_of(fake), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        fake.down = True
        server.should_exit = True
        thread.join(PATIENCE)
