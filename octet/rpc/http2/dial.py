"""From a place to a connection that is ready for calls."""

import asyncio
import socket
import ssl
from collections.abc import Callable

from octet.rpc.http2.connection import Connection
from octet.rpc.http2.place import Place

DIAL_SECONDS = 1.0
"""For each address: who does not answer for so long is not there."""
_UNSENT_MS = 5_000
"""What is sent and not even taken by the other machine for so long ends a connection."""
_ALPN = "h2"


class Unreachable(Exception):
    """Nobody there speaks gRPC with us. The message says why."""


async def dial(place: Place, tls: ssl.SSLContext | None, name: str, make: Callable[[], Connection]) -> Connection:
    """The first address that answers. `name` is what the certificate must say. Raises Unreachable."""
    try:
        hosts = (place.path,) if place.path else await place.hosts()
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{place.host} cannot be looked up: {error}") from None
    why = "it has no address"
    for host in hosts:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                return await _dialled(place, host, tls, name, make)
        except TimeoutError:
            why = f"{host}: no answer within {DIAL_SECONDS:g} s"
        except (OSError, ssl.CertificateError) as error:
            why = f"{host}: {error}"
    raise Unreachable(f"failed to connect: {why}")


async def _dialled(
    place: Place, host: str, tls: ssl.SSLContext | None, name: str, make: Callable[[], Connection]
) -> Connection:
    loop = asyncio.get_running_loop()
    if place.path:
        transport, connection = await loop.create_unix_connection(make, host)
    else:
        expected = None if tls is None else name
        transport, connection = await loop.create_connection(make, host, place.port, ssl=tls, server_hostname=expected)
    try:
        _check_protocol(transport, tls)
        _tune(transport)
        if not (await connection.ready and connection.is_open):
            raise ConnectionError(connection.why)
    except BaseException:
        transport.abort()
        raise
    return connection


def _check_protocol(transport: asyncio.Transport, tls: ssl.SSLContext | None) -> None:
    if tls is not None and transport.get_extra_info("ssl_object").selected_alpn_protocol() != _ALPN:
        raise ConnectionError("it does not speak HTTP/2 behind its certificate")


def _tune(transport: asyncio.Transport) -> None:
    connected = transport.get_extra_info("socket")
    if connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS)
