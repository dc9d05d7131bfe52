"""Where the server listens, and whether it may."""

import ipaddress
import socket
from pathlib import Path
from typing import Any, Protocol

from octet.rpc.bind_refused import BindRefused
from octet.rpc.certificates import Tls, grpc_credentials
from octet.rpc.socket_file import check_socket

__all__ = [
    "LOOPBACK",
    "Endpoint",
    "Tls",
    "address_of",
    "bind",
    "check_free",
    "check_keyed",
    "check_reach",
    "check_signed",
    "taken",
]

LOOPBACK = "127.0.0.1"


class Endpoint(Protocol):
    """Where a server listens."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int:
        """0 for any that is free."""

    @property
    def socket(self) -> Path | None:
        """A Unix socket instead of host and port: for this machine, and whoever may enter its folder."""

    @property
    def tls(self) -> Tls | None: ...

    @property
    def insecure(self) -> bool:
        """Serve beyond this machine without TLS, or whoever calls: only where something else guards the way."""


def bind(server: Any, endpoint: Endpoint) -> int:
    """The port; of no meaning for a Unix socket. Raises BindRefused."""
    check_reach(endpoint)
    address = address_of(endpoint)
    try:
        if endpoint.tls is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, grpc_credentials(endpoint.tls))
    except RuntimeError as error:
        raise taken(endpoint, error) from error
    return port


def check_free(endpoint: Endpoint, option: str = "--port") -> None:
    """Whether the address can be had now: sooner said than after a model is loaded. Raises BindRefused, which names the
    option that helps."""
    if endpoint.socket is not None:
        check_socket(endpoint.socket)
        return
    try:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise taken(endpoint, error, option) from error


def taken(endpoint: Endpoint, error: Exception, option: str = "--port") -> BindRefused:
    return BindRefused(
        f"cannot listen on {address_of(endpoint)}, is something else there? Name another with {option} ({error})"
    )


def check_reach(endpoint: Endpoint, helps: str = "--tls-certificate and --tls-key") -> None:
    """Beyond this machine only with TLS, or when told so in as many words."""
    if endpoint.socket is not None or is_loopback(endpoint.host) or endpoint.tls is not None or endpoint.insecure:
        return
    raise BindRefused(
        f"{endpoint.host} can be reached from other machines: give {helps}, "
        f"or say --insecure if something else guards the way"
    )


def check_keyed(endpoint: Endpoint, *, has_keys: bool) -> None:
    """Beyond this machine nobody is served who cannot say who they are, unless told so in as many words."""
    if endpoint.socket is not None or is_loopback(endpoint.host) or has_keys or endpoint.insecure:
        return
    raise BindRefused(
        f"{endpoint.host} can be reached from other machines, and nobody is asked for a key: name a file of them with "
        f"--keys (octet keys new makes one), or say --insecure if something else guards the way"
    )


def check_signed(endpoint: Endpoint) -> None:
    """The same for who is asked for no keys: whoever comes from elsewhere shows a certificate."""
    tls = endpoint.tls
    is_signed = tls is not None and tls.client_ca is not None
    if endpoint.socket is not None or is_loopback(endpoint.host) or is_signed or endpoint.insecure:
        return
    raise BindRefused(
        f"{endpoint.host} can be reached from other machines, and anybody would be served: give --tls-certificate, "
        f"--tls-key and --tls-client-ca, or say --insecure if something else guards the way"
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_of(endpoint: Endpoint, port: int | None = None) -> str:
    """As gRPC writes it; `port` is the one that was got where any would do."""
    if endpoint.socket is not None:
        return f"unix:{endpoint.socket}"
    shown = endpoint.port if port is None else port
    return f"[{endpoint.host}]:{shown}" if ":" in endpoint.host else f"{endpoint.host}:{shown}"
