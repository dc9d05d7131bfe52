"""Why nothing answers, in a sentence: gRPC's own words made short, and what to do where that is known."""

import re
import socket
import time

_LOOPBACK = re.compile(r"(?:(?:dns:///)?(?:localhost|127\.[0-9.]+|\[::1\])(?::|$)|ipv4:127\.|ipv6:(?:\[|%5B)::1)")
_PREFIX = re.compile(r"[A-Z_]+: (?:ipv[46]|unix):\S+: ")
_LOOKUP = re.compile(r"lookup failed for .*: ([^:\]]+)\]?$")
_PLACE = re.compile(r"(?:dns:///|ipv[46]:)?\[?([^\[\]]+?)\]?:([0-9]+)$")
_HUNG_UP = ("Socket closed", "reset by peer")
_NO_TLS = "WRONG_VERSION_NUMBER"
_UNUSABLE = "create security handshaker"
_HTTP = "http1.x server"
_SHORT = 160
_KNOCK_S = 0.5
_KNOCKS = 4
_PAUSE_S = 0.05


def unreachable(address: str, details: str, start: str = "start it with: octet serve") -> str:
    """`start`: what to do where nothing listens on this machine."""
    if "Connection refused" in details and _LOOPBACK.match(address):
        return f"nothing answers at {address}; {start}"
    if _NO_TLS in details:
        return (
            f"no TLS connection to {address}: what listens there speaks none; leave --tls-ca away, or start it with TLS"
        )
    if _UNUSABLE in details:
        return f"no TLS connection to {address}: --tls-ca must be a PEM file of certificates, and this one has none"
    if _HTTP in details:
        return f"nothing answers at {address}: HTTP is spoken there, and not gRPC, which has a port of its own"
    if "handshake failed" in details or "erification" in details:
        return f"no TLS connection to {address}: {_short(details)}; is --tls-ca what signed its certificate?"
    if any(words in details for words in _HUNG_UP) and _LOOPBACK.match(address) and not _listens(address):
        return f"nothing listens at {address} any more: it ended while it was asked; {start}"
    if "Socket closed" in details:
        return f"{address} closed the connection: it has ended, or wants TLS; if it speaks TLS, name its CA: --tls-ca"
    return f"nothing answers at {address}: {_short(details)}" if details else f"nothing answers at {address}"


def _listens(address: str) -> bool:
    """What has ended says no more than what speaks TLS; on this machine it costs little to look. A process that is
    being killed closes its connections before its door: one look is not enough."""
    found = _PLACE.match(address)
    if found is None:
        return True
    try:
        for _ in range(_KNOCKS):
            socket.create_connection((found[1], int(found[2])), _KNOCK_S).close()
            time.sleep(_PAUSE_S)
    except ConnectionRefusedError:
        return False
    except (OSError, OverflowError):
        return True  # nobody knows
    return True


def _short(details: str) -> str:
    """The last error alone, without the address that is said already."""
    last = _PREFIX.sub("", details.rpartition("last error: ")[2])
    found = _LOOKUP.search(last)
    if found is not None:
        return f"its name cannot be looked up ({found[1].strip().lower()})"
    return last if len(last) <= _SHORT else last[: _SHORT - 3] + "..."
