"""Why nothing answers, in a sentence: gRPC's own words made short, and what to do where that is known."""

import re

_LOOPBACK = re.compile(r"(?:(?:dns:///)?(?:localhost|127\.[0-9.]+|\[::1\])(?::|$)|ipv4:127\.|ipv6:(?:\[|%5B)::1)")
_PREFIX = re.compile(r"[A-Z_]+: (?:ipv[46]|unix):\S+: ")
_LOOKUP = re.compile(r"lookup failed for .*: ([^:\]]+)\]?$")
_SHORT = 160


def unreachable(address: str, details: str, start: str = "start it with: octet serve") -> str:
    """`start`: what to do where nothing listens on this machine."""
    if "Connection refused" in details and _LOOPBACK.match(address):
        return f"nothing answers at {address}; {start}"
    if "handshake failed" in details or "erification" in details:
        return f"no TLS connection to {address}: {_short(details)}; is --tls-ca what signed its certificate?"
    if "Socket closed" in details:
        return f"{address} closed the connection at once; if it speaks TLS, name its CA: --tls-ca"
    return f"nothing answers at {address}: {_short(details)}" if details else f"nothing answers at {address}"


def _short(details: str) -> str:
    """The last error alone, without the address that is said already."""
    last = _PREFIX.sub("", details.rpartition("last error: ")[2])
    found = _LOOKUP.search(last)
    if found is not None:
        return f"its name cannot be looked up ({found[1].strip().lower()})"
    return last if len(last) <= _SHORT else last[: _SHORT - 3] + "..."
