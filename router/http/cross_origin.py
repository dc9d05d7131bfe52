"""Pages of other origins: which of them may read what this door says. Nobody's may unless the configuration says so,
and what is for operators nobody's may at all."""

import re
from collections.abc import Iterable

from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.keys.access import ROUTES, Access

_OPERATORS = tuple(compile_path(path)[0] for path, access in ROUTES.items() if access is Access.OPERATE)
_METHODS = b"GET, POST"
_EXPOSED = (
    b"x-request-id, request-id, x-octet-specialist, octet-slo, retry-after, retry-after-ms, x-should-retry, location, "
    b"traceresponse"
)
_MAX_AGE_SECONDS = b"600"
_VARY = (b"vary", b"origin")
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
"""Of headers, as a preflight asks for them."""


class CrossOrigin:
    """Before the application: a preflight carries no key, and is answered here. Cookies are never asked for."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = {origin.encode() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin not in self._origins or any(path.match(scope["path"]) for path in _OPERATORS):
            await self._app(scope, receive, _adding(send, [_VARY]))
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _preflight(origin, headers.get(b"access-control-request-headers", b""), send)
        else:
            shown = [_allowed(origin), (b"access-control-expose-headers", _EXPOSED), _VARY]
            await self._app(scope, receive, _adding(send, shown))


def _allowed(origin: bytes) -> tuple[bytes, bytes]:
    return (b"access-control-allow-origin", origin)


async def _preflight(origin: bytes, asked: bytes, send: Send) -> None:
    """Whoever is trusted with what is said may send the headers that it likes: clients have many of their own."""
    headers = [
        _allowed(origin),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", _MAX_AGE_SECONDS),
        (b"vary", b"origin, access-control-request-headers"),
    ]
    if _NAMES.fullmatch(asked):
        headers.append((b"access-control-allow-headers", asked))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _adding(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *more]
        await send(message)

    return adding
