"""Access checks before a route runs: API keys, cross-origin requests, and web pages that try to act as an operator. A
page from another origin can send any request that an HTML form can send. If its host name is made to resolve to this
router (DNS rebinding), it can send any request. Browsers state the origin of a change; other programs may omit it."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octet.limits import shorten
from router.api.http.errors import PERMISSION, ApiError
from router.api.keys.gate import AccessGate
from router.api.keys.keys import ROUTE_ACCESS, Access

ROUTE_KEY = "octet.route"  # the key in the ASGI scope that holds the path of the matched route
_SAME_SITES = ("same-origin", "none")
_READ_METHODS = ("GET", "HEAD")
_OPERATOR_PATHS = tuple(compile_path(path)[0] for path, access in ROUTE_ACCESS.items() if access is Access.OPERATE)
_ALLOWED_METHODS = b"GET, POST, DELETE"
_EXPOSED_HEADERS = (
    b"x-request-id, request-id, x-octet-specialist, octet-slo, retry-after, retry-after-ms, x-should-retry, location, "
    b"traceresponse, octet-ticket"
)
_MAX_AGE_SECONDS = b"600"
_VARY = (b"vary", b"origin")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")


def guard_routes(routes: Iterable[Route], gate: AccessGate) -> None:
    """Make every route check access before it reads any of the request body."""
    for route in routes:
        route.app = _guard(route.app, route.path, gate)


def _guard(app: ASGIApp, path: str, gate: AccessGate) -> ASGIApp:
    access = ROUTE_ACCESS.get(path)

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE_KEY] = path
        with gate.call(gate.authorize(access, scope["headers"])):
            if access is Access.OPERATE:
                check_same_origin(scope, has_keys=gate.requires_keys)
            await app(scope, receive, send)

    return call


def check_same_origin(scope: Scope, *, has_keys: bool) -> None:
    """Raises ApiError if a browser sends a change from a page with another origin. Without keys, every caller has an
    operator's rights; then the host name is checked too, because a page may use DNS rebinding."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    host = _header_value(headers, b"host")
    is_read = scope["method"] in _READ_METHODS
    if not has_keys and not is_loopback(host) and not (is_read and not _is_local_connection(scope)):
        limit = "a loopback name or address, such as 127.0.0.1 or localhost, on a router without keys"
        raise _forbidden("host", limit, host)
    if is_read:
        return
    origin = _header_value(headers, b"origin")
    if origin is not None and (host is None or origin_host(origin) != host.lower()):
        raise _forbidden("origin", "left out or be the router's own origin", origin)
    site = _header_value(headers, b"sec-fetch-site")
    if site is not None and site not in _SAME_SITES:
        raise _forbidden("sec-fetch-site", " or ".join(_SAME_SITES), site)


def is_loopback(host: str | None) -> bool:
    """Whether a Host header, with or without a port, holds a loopback name or address."""
    try:
        name = urlsplit(f"//{host or ''}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def origin_host(origin: str) -> str | None:
    """Return the host, and the port if given, of an `http` or `https` origin; None for any other origin."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") and parts.netloc else None


def _is_local_connection(scope: Scope) -> bool:
    server = scope.get("server")
    return server is not None and is_loopback(f"[{server[0]}]" if ":" in server[0] else server[0])


def _header_value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return the value of a header. The values of a repeated header are joined: the result then fails every check."""
    found = [value.decode("latin-1").strip() for key, value in headers if key == name]
    return ", ".join(found) if found else None


def _forbidden(header: str, limit: str, got: str | None) -> ApiError:
    message = f"{header} must be {limit}, got {shorten(got or '')}"
    return ApiError(403, message, kind=PERMISSION, param=header, code="forbidden", limit=limit)


class CrossOrigin:
    """Middleware that lets pages from configured origins read responses, except those of operator routes. It answers
    preflight requests itself, because they carry no key. It never allows browsers to send cookies."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = {origin.encode() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin not in self._origins or any(path.match(scope["path"]) for path in _OPERATOR_PATHS):
            await self._app(scope, receive, _add_headers(send, [_VARY]))
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _answer_preflight(origin, headers.get(b"access-control-request-headers", b""), send)
        else:
            allowed = [_allow_origin(origin), (b"access-control-expose-headers", _EXPOSED_HEADERS), _VARY]
            await self._app(scope, receive, _add_headers(send, allowed))


def _allow_origin(origin: bytes) -> tuple[bytes, bytes]:
    return (b"access-control-allow-origin", origin)


async def _answer_preflight(origin: bytes, requested: bytes, send: Send) -> None:
    """Answer a preflight request. Every requested header is allowed, because clients send many different ones."""
    headers = [
        _allow_origin(origin),
        (b"access-control-allow-methods", _ALLOWED_METHODS),
        (b"access-control-max-age", _MAX_AGE_SECONDS),
        (b"vary", b"origin, access-control-request-headers"),
    ]
    if _HEADER_NAMES.fullmatch(requested):
        headers.append((b"access-control-allow-headers", requested))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _add_headers(send: Send, more: list[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *more]
        await send(message)

    return send_with_headers
