"""Binds a server to an address, after checking that this is possible and safe."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octet.addresses import is_loopback
from octet.rpc.certificates import Tls, server_credentials

LOOPBACK = "127.0.0.1"
MAX_SOCKET_PATH_BYTES = 107  # the kernel's limit for the path of a Unix socket
MAX_PENDING_CALLS = 8192
"""Maximum number of calls that gRPC has received but not yet delivered. Beyond this limit gRPC cancels calls without a
reason; by default it starts to cancel some at random at 1,000."""
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Detect peers that vanished.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # Close connections that send nothing.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 20_000),
    # Refuse oversized headers immediately instead of holding their stream for up to a second.
    ("grpc.http.tarpit", 0),
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
)


class BindRefused(ValueError):
    """Listening on an address is unsafe or impossible. The message explains what to do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str = LOOPBACK
    port: int = 0  # 0 for any free port
    socket: Path | None = None
    """A Unix socket instead of host and port, for processes on this machine that may enter its folder."""
    tls: Tls | None = None
    insecure: bool = False
    """Serve other machines without TLS or authentication, for networks that are secured otherwise."""


def bind_server(server: Any, endpoint: Endpoint) -> int:
    """Bind the server and return its port, which is meaningless for a Unix socket. Raises BindRefused."""
    check_tls_configured(endpoint)
    address = format_address(endpoint)
    try:
        if endpoint.tls is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, server_credentials(endpoint.tls))
    except RuntimeError as error:
        raise address_taken(endpoint, error) from error
    return port


def check_address_free(endpoint: Endpoint, option: str = "--port") -> None:
    """Check that the address is free, before a model is loaded. Raises BindRefused, naming the option to change."""
    if endpoint.socket is not None:
        check_socket_free(endpoint.socket)
        return
    try:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise address_taken(endpoint, error, option) from error


def bind_socket(endpoint: Endpoint, option: str) -> socket.socket:
    """Return a bound, non-blocking socket. Raises BindRefused, naming the option to change."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise address_taken(endpoint, error, option) from error
    return bound


def address_taken(endpoint: Endpoint, error: Exception, option: str = "--port") -> BindRefused:
    return BindRefused(
        f"cannot listen on {format_address(endpoint)} ({error}); "
        f"if another process uses this address, choose another one with {option}"
    )


def check_socket_free(path: Path) -> None:
    """Check that gRPC can create the socket and that no process uses it, or gRPC would take it. Raises BindRefused."""
    if len(str(path).encode()) > MAX_SOCKET_PATH_BYTES:
        raise BindRefused(f"a Unix socket path must have at most {MAX_SOCKET_PATH_BYTES} bytes: {path} is longer")
    if not path.parent.is_dir():
        raise BindRefused(f"cannot listen on {path}: the folder {path.parent} does not exist")
    if path.exists() and not path.is_socket():
        raise BindRefused(f"cannot listen on {path}: a file with that name exists")
    if path.exists() and _is_served(path):
        raise BindRefused(f"cannot listen on {path}: another process already does")


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError as error:
            raise BindRefused(f"cannot listen on {path}: {error}") from error
    return True


def check_tls_configured(endpoint: Endpoint, options: str = "--tls-certificate and --tls-key") -> None:
    """Require TLS, or an explicit --insecure, if other machines can connect. Raises BindRefused."""
    if endpoint.tls is None:
        _refuse_exposed(endpoint, f": set {options}, or")


def check_keys_configured(endpoint: Endpoint, *, has_keys: bool) -> None:
    """Require API keys, or an explicit --insecure, if other machines can connect. Raises BindRefused."""
    if not has_keys:
        advice = "name a key file with --keys (octet keys new creates one), or set"
        _refuse_exposed(endpoint, f", and no API keys are configured: {advice}")


def check_client_ca_configured(endpoint: Endpoint) -> None:
    """Require client certificates, or an explicit --insecure, if other machines can connect. Raises BindRefused."""
    if endpoint.tls is None or endpoint.tls.client_ca is None:
        advice = "set --tls-certificate, --tls-key and --tls-client-ca, or"
        _refuse_exposed(endpoint, f", and any caller would be served: {advice}")


def _refuse_exposed(endpoint: Endpoint, problem: str) -> None:
    if endpoint.socket is None and not is_loopback(endpoint.host) and not endpoint.insecure:
        exposed = f"{endpoint.host} can be reached from other machines"
        raise BindRefused(f"{exposed}{problem} --insecure if the network is secured otherwise")


def format_address(endpoint: Endpoint, port: int | None = None) -> str:
    """Format the address for gRPC. `port`, if given, replaces the endpoint's port."""
    if endpoint.socket is not None:
        return f"unix:{endpoint.socket}"
    shown = endpoint.port if port is None else port
    return f"[{endpoint.host}]:{shown}" if ":" in endpoint.host else f"{endpoint.host}:{shown}"
