"""A caller of OpenAI's dialect that costs next to nothing, on connections that are kept."""

import asyncio
import json
import socket
from collections.abc import Callable
from time import perf_counter
from typing import Self, cast

from bench.router_peers.order import WORD, Order

Heard = Callable[[int, int], None]
"""Told how many tokens have just come, and in how many messages."""
_WORD = WORD.encode()
_FIRST_WORD = b'"' + _WORD
"""Of a message: its text begins with it."""
_OK = b"HTTP/1.1 200"
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_LAST = b"0\r\n\r\n"
_SHOWN = 300


class CallFailed(RuntimeError):
    """An answer that is none. One line."""


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, sock: socket.socket, *, acks_at_once: bool) -> None:
        self._socket, self._acks_at_once = sock, acks_at_once
        self._done: asyncio.Future[float] | None = None
        self._transport: asyncio.Transport | None = None
        self._open = True
        self._begin(None)

    def _begin(self, heard: Heard | None) -> None:
        self._heard = heard
        self._head = b""
        self._missing: int | None = None
        """Bytes of a body whose length was told."""
        self._tail = b""
        self._first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by descent

    def connection_lost(self, _: Exception | None) -> None:
        self._open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(CallFailed(f"an answer was cut off after {self._head[:_SHOWN]!r}"))

    @property
    def usable(self) -> bool:
        return self._open

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes, heard: Heard | None) -> float:
        """Seconds to the first token of an answer that is read to its end."""
        if self._transport is None:
            raise CallFailed("not connected")
        self._begin(heard)
        self._done = asyncio.get_running_loop().create_future()
        self._began = perf_counter()
        self._transport.write(request)
        self._ack()
        return await self._done

    def data_received(self, data: bytes) -> None:
        self._ack()
        if self._done is None or self._done.done():
            return
        body = data if _HEAD_END in self._head else self._take_head(data)
        if not self._head.startswith(_OK) and len(self._head) >= len(_OK):
            status = self._head.partition(b"\r\n")[0][:_SHOWN]
            self._done.set_exception(CallFailed(f"refused: {status.decode('latin-1')}: {body[:_SHOWN]!r}"))
            return
        self._take_body(body)

    def _ack(self) -> None:
        """A kernel holds acknowledgements back, hoping to send them with data; asked not to, it forgets soon."""
        if self._acks_at_once:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _take_head(self, data: bytes) -> bytes:
        """What is behind it, as far as it has come."""
        self._head += data
        head, found, body = self._head.partition(_HEAD_END)
        if not found:
            return b""
        self._head = head + found
        _, told, rest = head.lower().partition(_LENGTH)
        self._missing = int(rest.partition(b"\r\n")[0]) if told else None
        return body

    def _take_body(self, body: bytes) -> None:
        joined = self._tail + body
        tokens = joined.count(_WORD) - self._tail.count(_WORD)
        if tokens:
            if not self._first:
                self._first = perf_counter() - self._began
            if self._heard is not None:
                self._heard(tokens, joined.count(_FIRST_WORD))
        self._tail = joined[-(len(_FIRST_WORD) - 1) :]
        if self._missing is not None:
            self._missing -= len(body)
        if self._missing == 0 or (self._missing is None and joined.endswith(_LAST)):
            self._end()

    def _end(self) -> None:
        if self._done is None or self._done.done():
            return
        if self._first:
            self._done.set_result(self._first)
        else:
            self._done.set_exception(CallFailed(f"an answer without a token: {self._head[:_SHOWN]!r}"))


class HttpCaller:
    """Of `/v1/chat/completions`. Belongs to the event loop."""

    def __init__(self, host: str, port: int, model: str, *, acks_at_once: bool) -> None:
        self._address, self._model, self._acks_at_once = (host, port), model, acks_at_once
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def call(self, prompt: str, order: Order, heard: Heard | None = None, *, stream: bool = True) -> float:
        """Seconds to the first token of an answer that is read to its end. Raises CallFailed."""
        request = self._request(f"{prompt} {order}", order.tokens, stream=stream)
        connection = await self._connection()
        try:
            first = await connection.ask(request, heard)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return first

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(sock, self._address)
        except OSError as error:
            sock.close()
            raise CallFailed(f"nobody listens on port {self._address[1]}: {error}") from error
        _, connection = await loop.create_connection(
            lambda: _Connection(sock, acks_at_once=self._acks_at_once), sock=sock
        )
        return connection

    def _request(self, content: str, tokens: int, *, stream: bool) -> bytes:
        body = json.dumps(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": tokens,
                "stream": stream,
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._address[0]}\r\ncontent-type: application/json\r\n"
        return f"{head}authorization: Bearer none\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
