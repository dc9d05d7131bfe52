"""A door of its own for Prometheus: `GET /metrics`, and nothing else. For a process that speaks no other HTTP."""

import asyncio
import socket
from contextlib import suppress
from http import HTTPStatus

from octet.rpc.bind import Endpoint, check_signed, taken
from octet.rpc.certificates import FollowingContext
from octet.telemetry.page import Page

MOST_AT_ONCE = 16
MOST_HEAD_BYTES = 8192
SECONDS = 10.0
"""For a whole scrape, from the connection to the last byte that is taken."""
PATH = "/metrics"
_PLAIN = "text/plain; charset=utf-8"


class MetricsDoor:
    """Created and used on a running event loop. One request a connection."""

    def __init__(self, page: Page, endpoint: Endpoint) -> None:
        """Raises BindRefused, and OSError for a certificate that cannot be read."""
        check_signed(endpoint)
        self._page = page
        self._tls = None if endpoint.tls is None else FollowingContext.over(endpoint.tls)
        self._socket = _bound(endpoint)
        self.port: int = self._socket.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._socket, ssl=self._tls, limit=MOST_HEAD_BYTES)

    async def stop(self) -> None:
        if self._server is None:
            self._socket.close()
            return
        self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            async with asyncio.timeout(SECONDS):
                if len(self._open) > MOST_AT_ONCE:
                    writer.write(_response(503, _PLAIN, b"too many scrapes at once\n"))
                else:
                    writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):  # it is gone, or too slow to be waited for
            writer.transport.abort()
        finally:
            self._open.discard(writer)
            with suppress(Exception):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return _response(400, _PLAIN, b"this is no HTTP request that is served here\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        if rest.partition(" ")[0].partition("?")[0] != PATH:
            return _response(404, _PLAIN, f"there is only {PATH}\n".encode())
        if method != "GET":
            return _response(405, _PLAIN, b"use GET\n", "allow: GET\r\n")
        accept = ",".join(
            value for name, _, value in (line.partition(":") for line in lines) if name.lower() == "accept"
        )
        written = await self._page.write(accept)
        return _response(200, written.content_type, written.body)


def _response(status: int, content_type: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


def _bound(endpoint: Endpoint) -> socket.socket:
    """Raises BindRefused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)[
            0
        ]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise taken(endpoint, error, "--metrics-port") from error
    return bound
