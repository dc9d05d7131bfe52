"""A caller of a replica that costs as little as the HTTP one: HTTP/2 by hand, as much of it as gRPC needs."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Self, cast

from bench.router_peers.http_caller import CallFailed, Heard
from bench.router_peers.order import WORD, Order

_WORD = WORD.encode()
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW = 4
"""A setting: how much a stream may carry before more is allowed."""
_FRAME_HEAD = 9
_FRAME_BYTES = 16_384
_USUAL_WINDOW = 65_535
_MOST_WINDOW = 2**31 - 1


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: str, value: str) -> bytes:
    """A header without a table: its name and its value, in full."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


class _Call:
    """One stream: what is still to be sent, and what has come."""

    def __init__(self, message: bytes, window: int, heard: Heard | None) -> None:
        self.left = message
        self.window = window
        self.done: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._heard = heard
        self._began = perf_counter()
        self._first = 0.0
        self._tail = b""

    def take(self, data: bytes) -> None:
        joined = self._tail + data
        tokens = joined.count(_WORD)
        self._tail = joined[-(len(_WORD) - 1) :]
        if tokens:
            self._first = self._first or perf_counter() - self._began
            if self._heard is not None:
                self._heard(tokens, 1)

    def end(self, why: str = "an answer without a token") -> None:
        if self.done.done():
            return
        if self._first:
            self.done.set_result(self._first)
        else:
            self.done.set_exception(CallFailed(why))


class _Connection(asyncio.Protocol):
    """Streams beside each other. What may be sent is counted for each of them and for all."""

    def __init__(self, headers: bytes) -> None:
        self._headers = headers
        self._buffer = bytearray()
        self._calls: dict[int, _Call] = {}
        self._sending: deque[int] = deque()
        self._next = 1
        self._window = self._stream_window = _USUAL_WINDOW

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by descent
        window = _INITIAL_WINDOW.to_bytes(2, "big") + _MOST_WINDOW.to_bytes(4, "big")
        more = (_MOST_WINDOW - _USUAL_WINDOW).to_bytes(4, "big")
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_WINDOW, 0, 0, more))

    def connection_lost(self, _: Exception | None) -> None:
        for call in self._calls.values():
            call.end("the connection is lost")

    async def ask(self, message: bytes, heard: Heard | None) -> float:
        stream, self._next = self._next, self._next + 2
        call = self._calls[stream] = _Call(
            b"\0" + len(message).to_bytes(4, "big") + message, self._stream_window, heard
        )
        self._sending.append(stream)
        self._transport.write(_frame(_HEADERS, _END_HEADERS, stream, self._headers) + b"".join(self._sendable()))
        try:
            return await call.done
        finally:
            del self._calls[stream]

    def _sendable(self) -> Iterator[bytes]:
        """Of whoever came first, as far as it may be sent now."""
        while self._sending:
            stream = self._sending[0]
            call = self._calls.get(stream)
            size = 0 if call is None else min(len(call.left), call.window, self._window, _FRAME_BYTES)
            if call is not None and size:
                part, call.left = call.left[:size], call.left[size:]
                call.window -= size
                self._window -= size
                yield _frame(_DATA, 0 if call.left else _END_STREAM, stream, part)
            if call is not None and call.left and not size:
                return
            if call is None or not call.left:
                self._sending.popleft()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        answer = b"".join(
            part for kind, flags, stream, load in self._frames() for part in self._take(kind, flags, stream, load)
        )
        answer += b"".join(self._sendable())
        if answer:
            self._transport.write(answer)

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        at, buffer = 0, self._buffer
        while len(buffer) - at >= _FRAME_HEAD:
            end = at + _FRAME_HEAD + int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) < end:
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            yield buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + _FRAME_HEAD : end])
            at = end
        del buffer[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> Iterator[bytes]:
        """What is to be said to it."""
        call = self._calls.get(stream)
        if kind == _DATA and call is not None:
            call.take(payload)
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            if kind == _SETTINGS:
                self._set(payload)
            yield _frame(kind, _ACK, 0, payload if kind == _PING else b"")
        elif kind == _WINDOW:
            self._allow(call, stream, int.from_bytes(payload, "big"))
        elif kind == _RESET and call is not None:
            call.end("the replica has ended it")
        elif kind == _GOAWAY:
            for each in self._calls.values():
                each.end("the replica has ended them all")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM and call is not None:
            call.end()

    def _set(self, settings: bytes) -> None:
        for at in range(0, len(settings), 6):
            if int.from_bytes(settings[at : at + 2], "big") == _INITIAL_WINDOW:
                window = int.from_bytes(settings[at + 2 : at + 6], "big")
                for call in self._calls.values():
                    call.window += window - self._stream_window
                self._stream_window = window

    def _allow(self, call: _Call | None, stream: int, more: int) -> None:
        if not stream:
            self._window += more
        elif call is not None:
            call.window += more

    def close(self) -> None:
        self._transport.close()


class BareCaller:
    """Of one method of a gRPC server. Belongs to the event loop."""

    def __init__(self, host: str, port: int, method: str, request: Callable[[str, int], bytes]) -> None:
        self._host, self._port, self._method, self._request = host, port, method, request

    async def __aenter__(self) -> Self:
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": self._method,
            ":authority": f"{self._host}:{self._port}",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(_literal(name, value) for name, value in headers.items())
        loop = asyncio.get_running_loop()
        try:
            _, self._connection = await loop.create_connection(lambda: _Connection(block), self._host, self._port)
        except OSError as error:
            raise CallFailed(f"nobody listens on port {self._port}: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()

    async def call(self, prompt: str, order: Order, heard: Heard | None = None, *, stream: bool = True) -> float:
        """Seconds to the first token of an answer that is read to its end. Raises CallFailed."""
        return await self._connection.ask(self._request(f"{prompt} {order}", order.tokens), heard)
