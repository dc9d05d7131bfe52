"""The gate before every route."""

from collections.abc import Iterable
from contextlib import ExitStack

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from octet.rpc.refusal import Refusal
from router.http.fault import fault_of
from router.http.own_page import check_own_page
from router.keys.access import ROUTES, Access
from router.keys.gate import Gate

ROUTE = "octet.route"
"""Where the scope of a request says which of the routes it has taken."""


def guard(routes: Iterable[Route], gate: Gate) -> None:
    """From here on nobody passes any of them who may not."""
    for route in routes:
        route.app = _Guarded(route.app, route.path, gate)


class _Guarded:
    def __init__(self, app: ASGIApp, path: str, gate: Gate) -> None:
        self._app = app
        self._path = path
        self._access = ROUTES.get(path)
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Fault before a byte of the body is read."""
        scope[ROUTE] = self._path
        with ExitStack() as call:
            try:
                call.enter_context(self._gate.inside(self._gate.admit(self._access, scope["headers"])))
            except Refusal as refusal:
                raise fault_of(refusal, {}) from None
            if self._access is Access.OPERATE:
                check_own_page(scope, has_keys=self._gate.asks)
            await self._app(scope, receive, send)
