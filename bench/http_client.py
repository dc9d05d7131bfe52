"""The HTTP/1.1 client of every bench: persistent connections, parsed by httptools, with callbacks for the body."""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import httptools

OnBody = Callable[[bytes], None]


class Broken(ConnectionError):
    """The response is incomplete or not HTTP."""


@dataclass(slots=True)
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # lower-case names


class HttpConnection(asyncio.Protocol):
    """A connection for one request at a time."""

    def __init__(self, *, acks_at_once: bool = False) -> None:
        self._acks_at_once = acks_at_once
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Response] | None = None
        self.response = Response()
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # not a subclass in uvloop

    def connection_lost(self, _: Exception | None) -> None:
        self.is_open = False
        headers = self.response.headers
        if self.response.status and not {"content-length", "transfer-encoding"} & headers.keys():
            self.on_message_complete()
        started = "the answer was cut off" if self.response.status else "the connection was closed before an answer"
        self._end(Broken(started))

    async def exchange(self, request: bytes, on_body: OnBody) -> Response:
        """Return the complete response. `self.response` has its status and headers before `on_body` is called."""
        if self._transport is None:
            raise Broken("not connected")
        self.response, self._on_body = Response(), on_body
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        self._ack()
        return await self._done

    def data_received(self, data: bytes) -> None:
        self._ack()
        if self._done is None or self._done.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            what = "with broken chunks" if self.response.status else "that is not HTTP/1.1"
            self._end(Broken(f"an answer {what}: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.response.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._on_body(body)

    def on_message_complete(self) -> None:
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(self.response)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def _end(self, error: BaseException) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def _ack(self) -> None:
        """Ask the kernel not to delay acknowledgements. The setting does not last: call this again at every read."""
        if self._acks_at_once and self._transport is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class HttpClient:
    """Opens as many connections as there are concurrent requests. Must be used on a single event loop."""

    def __init__(self, host: str, port: int, *, tls: ssl.SSLContext | None = None, acks_at_once: bool = False) -> None:
        self._address, self._tls, self._acks_at_once = (host, port), tls, acks_at_once
        self._idle: list[HttpConnection] = []

    async def exchange(self, request: bytes, on_body: OnBody) -> Response:
        """Return the response. Raises OSError if the connection fails, or Broken for an invalid response."""
        while self._idle and not self._idle[-1].is_open:
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            response = await connection.exchange(request, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return response

    async def _connect(self) -> HttpConnection:
        create = partial(HttpConnection, acks_at_once=self._acks_at_once)
        _, connection = await asyncio.get_running_loop().create_connection(create, *self._address, ssl=self._tls)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def http_request(method: str, path: str, host: str, body: object = None, more: str = "") -> bytes:
    """Return the bytes of a request. `body` is sent as JSON; `more` are further header lines."""
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n{more}content-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def chat_request(host: str, model: str, prompt: str, tokens: int, more: str = "", **fields: object) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, **fields}
    return http_request("POST", "/v1/chat/completions", host, body, more)
