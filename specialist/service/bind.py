"""Where the server listens, and whether it may."""

import ipaddress
import socket
from typing import Any

import grpc

from specialist.service.settings import ServiceSettings, Tls


class BindRefused(ValueError):
    """Listening there is not safe, or not possible. The message says what to do."""


def bind(server: Any, settings: ServiceSettings) -> int:
    """The port. Raises BindRefused."""
    check_reach(settings)
    address = _address(settings.host, settings.port)
    try:
        if settings.tls is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, _credentials(settings.tls))
    except RuntimeError as error:
        raise _taken(settings, error) from error
    return port


def check_free(settings: ServiceSettings) -> None:
    """Whether the address can be had now: sooner said than after a model is loaded. Raises BindRefused."""
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        raise _taken(settings, error) from error


def _taken(settings: ServiceSettings, error: Exception) -> BindRefused:
    address = _address(settings.host, settings.port)
    return BindRefused(f"cannot listen on {address}, is something else there? Name another with --port ({error})")


def check_reach(settings: ServiceSettings) -> None:
    """Beyond this machine only with TLS, or when told so in as many words."""
    if _is_loopback(settings.host) or settings.tls is not None or settings.insecure_bind:
        return
    raise BindRefused(
        f"{settings.host} can be reached from other machines: give --tls-certificate and --tls-key, "
        f"or say --insecure-bind if something else guards the way"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _credentials(tls: Tls) -> Any:
    ca = None if tls.client_ca is None else tls.client_ca.read_bytes()
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)
