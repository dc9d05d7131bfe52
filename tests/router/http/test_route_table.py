"""The route table finds the same route as Starlette's own search, and sets the same scope."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from router.api.http.app import RouteTable

SCOPE_KEYS = ("route", "endpoint", "path_params")
PATHS = ("/a", "/a/", "/a\n", "/a/b", "/a/fixed", "/late", "/both", "/none", "/", "")
METHODS = ("GET", "HEAD", "POST", "PUT", "get", "")
Table = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class _Endpoint:
    """An endpoint that records the scopes of its calls."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)


def _routes() -> list[Route]:
    return [
        Route("/a", _Endpoint(), methods=["GET"]),
        Route("/a/{rest:path}", _Endpoint(), methods=["GET"]),
        Route("/a/fixed", _Endpoint(), methods=["GET", "POST"]),  # the route before this one handles GET
        Route("/both", _Endpoint(), methods=["GET"]),
        Route("/both", _Endpoint(), methods=["POST", "GET"]),
        Route("/{any}", _Endpoint(), methods=["PUT"]),
        Route("/late", _Endpoint(), methods=["POST"]),
    ]


def _scopes(route: Route) -> list[Scope]:
    assert isinstance(route.endpoint, _Endpoint)
    return route.endpoint.scopes


async def _receive() -> Message:
    raise AssertionError("these routes do not read requests")


async def _send(message: Message) -> None:
    raise AssertionError("these routes do not send answers")


def _taken(table: Table, routes: list[Route], scope: Scope) -> Any:
    """Return the index of the called route and facts about its scope, or the details of the error response."""
    scope = {**scope, "app": table}
    try:
        asyncio.run(table(scope, _receive, _send))
    except HTTPException as error:
        allowed = (error.headers or {}).get("Allow", "")
        return error.status_code, sorted(allowed.split(", ")), [key in scope for key in SCOPE_KEYS]
    (reached,) = [number for number, route in enumerate(routes) if _scopes(route)]
    assert _scopes(routes[reached]).pop() is scope and not _scopes(routes[reached])
    assert scope["route"] is routes[reached] and isinstance(scope["router"], Router)
    return reached, scope["endpoint"] is routes[reached].endpoint, scope["path_params"], sorted(scope)


@pytest.mark.parametrize("root", ["", "/a"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", METHODS)
def test_table_and_search_find_the_same_route(method: str, path: str, root: str) -> None:
    routes = _routes()
    scope = {"type": "http", "method": method, "path": path, "root_path": root, "headers": []}
    search = Router(routes=routes, redirect_slashes=False)
    assert _taken(RouteTable(routes), routes, scope) == _taken(search, routes, scope)


def test_path_params_are_not_shared_between_requests() -> None:
    routes = _routes()
    table = RouteTable(routes)
    for _ in range(2):
        scope: Scope = {"type": "http", "method": "GET", "path": "/a", "headers": []}
        asyncio.run(table(scope, _receive, _send))
        assert scope["path_params"] == {}
        scope["path_params"]["left"] = "behind"
