"""Where the server listens, and whether it may."""

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from octet.rpc.bind_refused import BindRefused
from octet.rpc.socket_file import check_socket

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Tls:
    certificate: Path
    key: Path
    client_ca: Path | None = None
    """With it, only callers whose certificate it has signed are served."""


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
    def insecure_bind(self) -> bool:
        """Serve beyond this machine without TLS: only where something else guards the way."""


def bind(server: Any, endpoint: Endpoint) -> int:
    """The port; of no meaning for a Unix socket. Raises BindRefused."""
    check_reach(endpoint)
    address = address_of(endpoint)
    try:
        if endpoint.tls is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(endpoint.tls))
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


def check_reach(endpoint: Endpoint) -> None:
    """Beyond this machine only with TLS, or when told so in as many words."""
    if endpoint.socket is not None or _is_loopback(endpoint.host) or endpoint.tls is not None or endpoint.insecure_bind:
        return
    raise BindRefused(
        f"{endpoint.host} can be reached from other machines: give --tls-certificate and --tls-key, "
        f"or say --insecure-bind if something else guards the way"
    )


def _is_loopback(host: str) -> bool:
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


def _credentials(tls: Tls) -> Any:
    ca = None if tls.client_ca is None else tls.client_ca.read_bytes()
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)
