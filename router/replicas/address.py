"""Where replicas are: host:port, unix:PATH, or a DNS name behind which every address is a replica of its own."""

import asyncio
import socket
from dataclasses import dataclass

_DNS = "dns:///"
_UNIX = "unix:"


class AddressInvalid(ValueError):
    """Nothing can be reached under it. The message says what an address looks like."""


@dataclass(frozen=True, slots=True)
class Target:
    """One replica's place."""

    label: str
    """What its name ends with: the same on every router with the same configuration."""
    address: str
    """As it is dialled: host:port or unix:PATH."""
    authority: str = ""
    """Whose certificate it shows, where that is not plain from the address."""


def check_address(address: str) -> None:
    """Raises AddressInvalid."""
    if address.startswith(_UNIX):
        if len(address) == len(_UNIX):
            raise AddressInvalid(f"a Unix socket is given as unix:PATH, got {address!r}")
        return
    _host_and_port(address.removeprefix(_DNS))


def is_dns(address: str) -> bool:
    return address.startswith(_DNS)


def fixed(index: int, address: str) -> Target:
    return Target(str(index), address)


async def resolve(address: str) -> tuple[Target, ...]:
    """Every address behind a DNS name, in order. They are of one family, the one that this machine would dial first: a
    replica with an address in both is one replica. Raises OSError when the name cannot be looked up."""
    host, port = _host_and_port(address.removeprefix(_DNS))
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places = sorted({_joined(str(where[0]), port) for family, _, _, _, where in found if family == found[0][0]})
    return tuple(Target(place, place, authority=host) for place in places)


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or "/" in bare or not port.isdecimal() or not 0 < int(port) < 65536:
        raise AddressInvalid(f"an address is host:port, dns:///name:port or unix:PATH, got {text!r}")
    return bare, int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
