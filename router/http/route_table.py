"""Who answers: by method and path at once where the path is one and the same for all, by Starlette's search else."""

from collections.abc import Mapping, Sequence

from starlette.routing import Match, Route, Router
from starlette.types import Receive, Scope, Send


class RouteTable:
    """An ASGI application. Raises HTTPException for what no route takes: its scopes have an app."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._search = Router(routes=routes, redirect_slashes=False)
        self._fixed = _fixed(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The scope tells the same whichever way was taken."""
        route = self._fixed.get((scope.get("method", ""), scope["path"]))
        if route is None or scope.get("root_path"):
            await self._search(scope, receive, send)
            return
        scope["router"] = self._search
        scope["route"] = route
        scope["endpoint"] = route.endpoint
        scope["path_params"] = {}
        await route.app(scope, receive, send)


def _fixed(routes: Sequence[Route]) -> Mapping[tuple[str, str], Route]:
    """By method and path: those without parameters that no route before them takes from them."""
    return {
        (method, route.path): route
        for route in routes
        for method in route.methods or ()
        if not route.param_convertors and _first(routes, method, route.path) is route
    }


def _first(routes: Sequence[Route], method: str, path: str) -> Route:
    asked = {"type": "http", "method": method, "path": path}
    return next(route for route in routes if route.matches(asked)[0] is Match.FULL)
