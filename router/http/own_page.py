"""Operators' routes answer no page but the router's own, whatever a browser is talked into.

A page of another origin may send what a form can send, and more where a name that it owns is made to lead here (DNS
rebinding). Browsers say where a request comes from; programs that are none say nothing, and need not.
"""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from octet.rpc.refusal import shorten
from router.http.fault import PERMISSION, Fault

_OWN_SITES = ("same-origin", "none")
_READS = ("GET", "HEAD")


def check_own_page(scope: Scope, *, has_keys: bool) -> None:
    """Raises Fault. Without keys whoever reaches the door may operate, and the name that it was reached by is all that
    tells a page of this machine from one that was led here."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    host = _only(headers, b"host")
    is_read = scope["method"] in _READS
    if not has_keys and not is_loopback(host) and not (is_read and not _is_local(scope)):
        raise _forbidden(
            "host", "a loopback name or address, as 127.0.0.1 or localhost, where no keys are asked for", host
        )
    if is_read:
        return
    origin = _only(headers, b"origin")
    if origin is not None and (host is None or host_of(origin) != host.lower()):
        raise _forbidden("origin", "left out, or the router's own", origin)
    site = _only(headers, b"sec-fetch-site")
    if site is not None and site not in _OWN_SITES:
        raise _forbidden("sec-fetch-site", " or ".join(_OWN_SITES), site)


def is_loopback(host: str | None) -> bool:
    """A name or an address as a Host header has it, with its port or without."""
    try:
        name = urlsplit(f"//{host or ''}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(origin: str) -> str | None:
    """With its port where that is not the scheme's own; None where it is no page of any host."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") and parts.netloc else None


def _is_local(scope: Scope) -> bool:
    """Whether the connection came to this machine's own loopback: nobody is meant to reach that by another name."""
    server = scope.get("server")
    return server is not None and is_loopback(f"[{server[0]}]" if ":" in server[0] else server[0])


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Two of one kind are none that could be believed."""
    found = [value.decode("latin-1").strip() for key, value in headers if key == name]
    return None if not found else found[0] if len(found) == 1 else ", ".join(found)


def _forbidden(header: str, limit: str, got: str | None) -> Fault:
    message = f"{header} must be {limit}, got {shorten(got or '')}"
    return Fault(403, message, kind=PERMISSION, param=header, code="forbidden", limit=limit)
