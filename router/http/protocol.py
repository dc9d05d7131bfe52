"""A connection that is not held for ever: by a head that never ends, by answers that are never read, or by a caller
that is gone behind a request that nobody has read yet."""

import asyncio
import json
import resource
import select
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from router.http.connection import EXTENSION, Connection
from router.http.fault import Fault
from router.http.joining import Joining

HEAD_SECONDS = 5.0
"""From the first byte of a request, or the connection's beginning, to the end of its headers."""
MOST_HEAD_BYTES = 64 << 10
MOST_UNSENT_BYTES = 32 << 10
"""That the kernel takes for a caller who does not read; else it would take megabytes of every answer."""
PEER_SECONDS = 1.0
"""Between two looks at whether the caller is still there, while nothing is read from it."""
_SEPARATORS = 4
"""Bytes of a header beside its name and its value."""
_SHARE = 2
"""Of the files this process may open, one in so many may be a connection of this door."""


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reads_head = False
        """Some of it has come."""
        self._num_head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._fault: Fault | None = None
        """What a parser that stops is to say."""
        self._answered: RequestResponseCycle | None = None
        """Uvicorn knows only the request that came last, which may have to wait for this one."""
        self._peer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE:
            transport.abort()
            return
        own: socket.socket = transport.get_extra_info("socket")
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # no token waits for an acknowledgement
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_watch()
        self._end_peer_watch()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        read_head = self._reads_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self._watch_peer()
        if self._reads_head and (read_head or self.cycle is None):
            self._num_head_bytes += len(data)
        if self._num_head_bytes > MOST_HEAD_BYTES:
            self._fault = _too_large()
            self.send_400_response("")
        elif self.cycle is None or self.cycle.response_complete:
            self._watch_head()

    def on_message_begin(self) -> None:
        self._reads_head = True
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._reads_head = False
        self._num_head_bytes = 0
        self._end_watch()
        if len(self.url) + sum(len(name) + len(value) + _SEPARATORS for name, value in self.headers) > MOST_HEAD_BYTES:
            self._fault = _too_large()
            raise ValueError(str(self._fault))
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._reads_head and not self.transport.is_closing():
            self._watch_head()

    def send_400_response(self, msg: str) -> None:
        """Everything that is no HTTP, in the words of the rest."""
        fault = self._fault or Fault(400, "this is no HTTP request", code="malformed")
        body = json.dumps(fault.envelope()).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: " + str(len(body)).encode()
        self.transport.write(STATUS_LINE[fault.status] + head + b"\r\n\r\n" + body)
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Whoever has not even read the last answer is not waited for."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        joining = Joining(self.transport, self.loop)
        writer: Any = joining
        cycle.transport = writer
        send: Any = cycle.send
        connection = Connection(
            end=self.transport.abort,
            send=send,
            is_free=self._is_free,
            has_all=lambda: not cycle.more_body,
            hold=joining.hold,
        )
        extensions: Any = {EXTENSION: connection}
        cycle.scope["extensions"] = extensions
        super()._start_asgi_task(cycle, app)

    def _is_free(self) -> bool:
        return not self.flow.write_paused

    def _watch_peer(self) -> None:
        if self._peer_timer is None:
            self._peer_timer = self.loop.call_later(PEER_SECONDS, self._look)

    def _end_peer_watch(self) -> None:
        if self._peer_timer is not None:
            self._peer_timer.cancel()
            self._peer_timer = None

    def _look(self) -> None:
        """Who is read from is noticed when it goes; behind bytes that nobody reads, its end has to be looked for."""
        self._peer_timer = None
        if self.transport.is_closing() or not self.flow.read_paused:
            return
        if _is_gone(self.transport.get_extra_info("socket")):
            self.transport.abort()
        else:
            self._watch_peer()

    def _watch_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def _end_watch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self._reads_head:
            self.timeout_keep_alive_handler()
        elif not self.transport.is_closing():
            self._fault = Fault(408, f"no request came within {HEAD_SECONDS:g} s", code="request_timeout")
            self.send_400_response("")


def _is_gone(peer: socket.socket) -> bool:
    """Whether it has said that it sends no more, or its connection failed."""
    look = select.poll()
    look.register(peer.fileno(), select.POLLRDHUP)
    return bool(look.poll(0))


def _too_large() -> Fault:
    return Fault(431, f"a request's headers must be at most {MOST_HEAD_BYTES:,} bytes", code="headers_too_large")
