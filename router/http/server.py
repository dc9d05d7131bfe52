"""Uvicorn on the router's own event loop: it neither minds signals nor ends the process."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from octet.rpc.bind import Endpoint, address_of, check_reach, taken
from octet.rpc.certificates import FollowingContext
from router.http.app import App
from router.http.cross_origin import CrossOrigin
from router.http.protocol import BoundedProtocol
from router.service.settings import HttpDoor

KEEP_ALIVE_SECONDS = 75
_BACKLOG = 1024
_LEAST_SECONDS = 0.15
"""For connections that are idle to close."""
_LAST_SECONDS = 1.0
"""For tasks that were told to end."""


class HttpServer:
    """Created and used on a running event loop."""

    def __init__(self, app: App, door: HttpDoor) -> None:
        """Raises BindRefused, and OSError for a certificate that cannot be read."""
        check_reach(door)
        self.app = app
        self._server = _Server(_config(CrossOrigin(app, door.allow_origins) if door.allow_origins else app, door))
        self._server.config.load()
        if door.tls is not None:
            self._server.config.ssl = FollowingContext.over(door.tls)
        self._socket = _bound(door)
        self.port: int = self._socket.getsockname()[1]
        scheme = "http" if door.tls is None else "https"
        self.url = f"{scheme}://{address_of(door, self.port)}"
        self._serving: asyncio.Task[None] | None = None

    @property
    def num_connections(self) -> int:
        return len(self.live_connections)

    @property
    def live_connections(self) -> tuple[Any, ...]:
        """Uvicorn's protocols."""
        return tuple(self._server.server_state.connections)

    async def start(self) -> None:
        """Returns when it listens."""
        self._serving = asyncio.create_task(self._server.serve([self._socket]))
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((self._serving, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self, grace: float) -> None:
        """Nothing new; what is being answered gets `grace` seconds."""
        if self._serving is None:
            self._socket.close()
            return
        for listening in self._server.servers:
            listening.close()  # now, and not when uvicorn looks next
        self._server.config.timeout_graceful_shutdown = max(grace, _LEAST_SECONDS)  # type: ignore[assignment]  # seconds, whole or not
        self._server.should_exit = True
        await self._serving
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(tuple(state.tasks), timeout=_LAST_SECONDS)
        for connection in tuple(state.connections):
            connection.transport.abort()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the process's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def _config(app: ASGIApp, door: Endpoint) -> uvicorn.Config:
    tls = door.tls
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )


def _bound(door: Endpoint) -> socket.socket:
    """Raises BindRefused."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise taken(door, error, "--http-port") from error
    bound.setblocking(False)
    return bound
