"""Uvicorn on the router's own event loop, with limits on request heads and unread answers, and disconnect detection."""

import asyncio
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from octet.rpc.certificates import ReloadingSslContext
from octet.rpc.listener import Endpoint, bind_socket, check_tls_configured, format_address
from router.api.http.access_control import CrossOrigin
from router.api.http.app import App
from router.api.http.connection import EXTENSION, CallerConnection
from router.api.http.errors import ApiError
from router.settings import HttpSettings

KEEP_ALIVE_SECONDS = 75
HEAD_TIMEOUT_SECONDS = 5.0  # from the start of the connection or of a later request to the end of the headers
MAX_HEAD_BYTES = 64 << 10
MAX_UNSENT_BYTES = 32 << 10  # buffered by the kernel for a caller that does not read; the default is megabytes
PEER_CHECK_SECONDS = 1.0  # between two checks that the caller is connected while nothing is read from it
_BACKLOG = 1024
_MIN_GRACE_SECONDS = 0.15  # minimum time for idle connections to close
_CANCEL_GRACE_SECONDS = 1.0  # the time for cancelled tasks to end
_HEADER_SEPARATOR_BYTES = 4
_OPEN_FILE_SHARE = 2  # HTTP connections may use one in this many of the process's file descriptors


class HttpServer:
    """The router's HTTP server. Used only on a running event loop."""

    def __init__(self, app: App, settings: HttpSettings) -> None:
        """Raises BindRefused if the address cannot be used, and OSError if a certificate cannot be read."""
        check_tls_configured(settings)
        self.app = app
        served = CrossOrigin(app, settings.allow_origins) if settings.allow_origins else app
        self._server = _UvicornServer(_config(served, settings))
        self._server.config.load()
        if settings.tls is not None:
            self._server.config.ssl = ReloadingSslContext.watch(settings.tls)
        given = settings.descriptor
        self._socket = bind_socket(settings, "--http-port") if given is None else socket.socket(fileno=given)
        self.port: int = self._socket.getsockname()[1]
        scheme = "http" if settings.tls is None else "https"
        self.url = f"{scheme}://{format_address(settings, self.port)}"
        self._serving: asyncio.Task[None] | None = None

    @property
    def live_connections(self) -> tuple[Any, ...]:
        return tuple(self._server.server_state.connections)

    async def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve([self._socket]))
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait((self._serving, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self, grace: float) -> None:
        """Accept no new connections, and give open requests `grace` seconds to end."""
        if self._serving is None:
            self._socket.close()
            return
        for listening in self._server.servers:
            listening.close()  # immediately; uvicorn would wait for its next tick
        seconds: Any = max(grace, _MIN_GRACE_SECONDS)  # uvicorn declares an int but accepts a float
        self._server.config.timeout_graceful_shutdown = seconds
        self._server.should_exit = True
        await self._serving
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(tuple(state.tasks), timeout=_CANCEL_GRACE_SECONDS)
        for connection in tuple(state.connections):
            connection.transport.abort()


class _UvicornServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process's own handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def _config(app: ASGIApp, endpoint: Endpoint) -> uvicorn.Config:
    tls = endpoint.tls
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


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_reading_head = False
        self._num_head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._error: ApiError | None = None  # the error to respond with when the parser stops
        self._answered: RequestResponseCycle | None = None
        """The request being answered. Uvicorn knows only the latest request, which may wait for this one."""
        self._peer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _OPEN_FILE_SHARE:
            transport.abort()
            return
        own: socket.socket = transport.get_extra_info("socket")
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # no token waits for an acknowledgement
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._peer_timer is not None:
            self._peer_timer.cancel()
            self._peer_timer = None
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        was_reading_head = self._is_reading_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._start_peer_timer()
        if self._is_reading_head and (was_reading_head or self.cycle is None):
            self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._error = _head_too_large()
            self.send_400_response("")
        elif self.cycle is None or self.cycle.response_complete:
            self._start_head_timer()

    def on_message_begin(self) -> None:
        self._is_reading_head = True
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_reading_head = False
        self._num_head_bytes = 0
        self._stop_head_timer()
        num_bytes = sum(len(name) + len(value) + _HEADER_SEPARATOR_BYTES for name, value in self.headers)
        if len(self.url) + num_bytes > MAX_HEAD_BYTES:
            self._error = _head_too_large()
            raise ValueError(str(self._error))
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_reading_head and not self.transport.is_closing():
            self._start_head_timer()

    def send_400_response(self, msg: str) -> None:
        """Respond with `_error` in the usual envelope. If it is not set, the bytes were not HTTP."""
        error = self._error or ApiError(400, "this is not an HTTP request", code="malformed")
        body = msgspec.json.encode(error.envelope())
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[error.status] + head + body)
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close the idle connection, or abort it if the caller has not read the last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        writer: Any = CoalescingWriter(self.transport, self.loop)
        cycle.transport = writer
        send: Any = cycle.send
        connection = CallerConnection(
            abort=self.transport.abort,
            send=send,
            is_writable=lambda: not self.flow.write_paused,
            has_body=lambda: not cycle.more_body,
            hold=writer.hold,
        )
        extensions: Any = {EXTENSION: connection}
        cycle.scope["extensions"] = extensions
        super()._start_asgi_task(cycle, app)

    def _start_peer_timer(self) -> None:
        if self._peer_timer is None:
            self._peer_timer = self.loop.call_later(PEER_CHECK_SECONDS, self._check_peer)

    def _check_peer(self) -> None:
        """Check for a disconnect while reading is paused, because the event loop does not report it then."""
        self._peer_timer = None
        if self.transport.is_closing() or not self.flow.read_paused:
            return
        if _is_disconnected(self.transport.get_extra_info("socket")):
            self.transport.abort()
        else:
            self._start_peer_timer()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_SECONDS, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self._is_reading_head:
            self.timeout_keep_alive_handler()
        elif not self.transport.is_closing():
            message = f"no request arrived within {HEAD_TIMEOUT_SECONDS:g} s"
            self._error = ApiError(408, message, code="request_timeout")
            self.send_400_response("")


def _is_disconnected(peer: socket.socket) -> bool:
    """Whether the peer has closed its side, or the connection has failed."""
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _head_too_large() -> ApiError:
    return ApiError(431, f"the headers must be at most {MAX_HEAD_BYTES:,} bytes", code="headers_too_large")


@dataclass
class CoalescingWriter:
    """Joins a held write with the next one, which saves a system call here and a read by the caller."""

    _transport: asyncio.Transport
    _loop: asyncio.AbstractEventLoop
    _hold_next: bool = False
    _held: bytes = b""

    def hold(self) -> None:
        """Hold the next write until the write after it, or until the next turn of the event loop."""
        self._flush()
        self._hold_next = True

    def write(self, data: bytes) -> None:
        if self._hold_next:
            self._hold_next = False
            self._held = data
            self._loop.call_soon(self._flush)
            return
        held, self._held = self._held, b""
        self._transport.write(held + data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)
