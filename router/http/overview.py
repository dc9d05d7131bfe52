"""`/v1/overview`: everything at a glance, now and as it changes; `/v1/history`: how it came to be so."""

from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octet.rpc.calls import CallerGone
from octet.rpc.refusal import Refusal, shorten
from router.http.asking import while_there
from router.http.connection import abort
from router.http.event_stream import last_event
from router.http.fault import fault_of, wrong
from router.http.outlet import Outlet
from router.http.server_events import named_event, written_event
from router.operator.limits import CHECKS
from router.reception.standing import current_standing
from router.view.view import View

PATIENCE_SECONDS = 20.0
"""Whoever takes nothing for so long is let go."""
_MOST_DIGITS = 32
_PRIVATE = {"cache-control": "no-store"}


def overview_routes(view: View) -> list[Route]:
    desk = _Desk(view)
    return [
        Route("/v1/overview", desk.overview, methods=["GET"]),
        Route("/v1/overview/events", _Events(view), methods=["GET"]),
        Route("/v1/history", desk.history, methods=["GET"]),
    ]


class _Desk:
    def __init__(self, view: View) -> None:
        self._view = view

    async def overview(self, _: Request) -> Response:
        return _json(await self._view.now().told())

    async def history(self, request: Request) -> Response:
        seconds = _seconds(request.query_params.get("last_seconds", "0"))
        return _json(self._view.history.told(self._view.since_ms(seconds)))


class _Events:
    """An endpoint that writes its own response: a class, which Starlette hands the connection itself."""

    def __init__(self, view: View) -> None:
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Fault, CallerGone."""
        outlet = Outlet(scope, send, PATIENCE_SECONDS)
        try:
            if scope["method"] == "HEAD":
                await outlet.say(b"")
                await outlet.end()
                return
            await while_there(receive, self._follow(outlet))
        except Refusal as refusal:
            fault = fault_of(refusal, {})
            if not outlet.is_open:
                raise fault from None
            await last_event(named_event("error", fault.envelope()), fault, outlet, scope, receive)
        except (CallerGone, TimeoutError):
            await abort(scope, receive)

    async def _follow(self, outlet: Outlet) -> None:
        """Without an end, but for the caller's."""
        known = current_standing()
        async with aclosing(self._view.follow()) as frames:
            frame = await known.while_known(lambda: anext(frames))
            await outlet.say(written_event("history", self._view.history.told()))
            while True:
                await outlet.say(written_event("overview", await frame.told()))
                frame = await known.while_known(lambda: anext(frames))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers=_PRIVATE)


def _seconds(text: str) -> float:
    """Raises Fault."""
    try:
        seconds = float(text) if text.isascii() and len(text) <= _MOST_DIGITS else None
    except ValueError:
        seconds = None
    if seconds is None:
        raise wrong("last_seconds", "a number of seconds", shorten(text))
    try:
        return CHECKS.in_range("last_seconds", seconds)
    except Refusal as refusal:
        raise fault_of(refusal, {}) from None
