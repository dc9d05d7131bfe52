"""Backends with OpenAI's API that cost almost nothing, so that the measured cost is that of the router.

`python -m bench.router_peers.http_backend NUMBER` listens on this number of ports, prints them in a line, and serves
until it is terminated. Each token is written separately, as by real engines.
"""

import asyncio
import json
import socket
import sys
from typing import cast

import httptools
import uvloop

from bench.processes import HOST, wait_for_sigterm
from bench.router_peers.cases import WORD, Order, OrderMissing

MODEL = "word"
_LAST = b"0\r\n\r\n"
_STREAMED = b'"stream":true'
_MOST_HEAD = 400  # bytes at either end of a body that are searched for "stream"


def _frame(event: str) -> bytes:
    raw = f"data: {event}\n\n".encode()
    return f"{len(raw):x}\r\n".encode() + raw + b"\r\n"


def _chunk(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return _frame(json.dumps(event, separators=(",", ":")))


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    + _chunk({"role": "assistant", "content": ""}, None)
)
_WORD = _chunk({"content": WORD}, None)
_STREAM_END = _chunk({}, "length") + _frame("[DONE]") + _LAST


class Backend(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = b"", bytearray()
        self._transport: asyncio.Transport | None = None
        self._blocked = False
        self._waiting: Order | None = None  # continues once the transport can write
        self._sent = 0
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # not a subclass in uvloop

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._waiting is not None:
            order, self._waiting = self._waiting, None
            self._continue(order)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # a probe for HTTP/2
            if self._transport is not None:
                self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url, bytearray()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._path.endswith(b"/chat/completions"):
            self._send_json(_PAGES.get(self._path, {}), "200 OK" if self._path in _PAGES else "404 Not Found")
            return
        body = bytes(self._body)
        try:
            order = Order.read(body)
        except OrderMissing as error:
            self._send_json({"error": {"message": str(error)}}, "400 Bad Request")
            return
        if _STREAMED not in (body[:_MOST_HEAD] + body[-_MOST_HEAD:]).replace(b" ", b""):
            self._send_json(_whole(order))
            return
        self._sent, self._began = 1, self._loop.time()
        self._write(_STREAM_HEAD + _WORD)
        self._go_on(order)

    def _go_on(self, order: Order) -> None:
        """Schedule the next token in a later turn of the event loop, so that each token is its own write."""
        if order.pace_us:
            self._loop.call_at(self._began + self._sent * order.pace_us / 1e6, self._continue, order)
        else:
            self._loop.call_soon(self._continue, order)

    def _continue(self, order: Order) -> None:
        if self._transport is None:
            return
        if self._blocked:
            self._waiting = order
        elif self._sent < order.tokens:
            self._write(_WORD)
            self._sent += 1
            self._go_on(order)
        else:
            self._write(_STREAM_END)

    def _send_json(self, page: object, status: str = "200 OK") -> None:
        raw = json.dumps(page).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        self._write(head.encode() + raw)

    def _write(self, raw: bytes) -> None:
        if self._transport is not None:
            self._transport.write(raw)


_PAGES: dict[bytes, object] = {
    b"/health": {"status": "ok"},
    b"/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "bench"}]},
}


def _whole(order: Order) -> object:
    message = {"role": "assistant", "content": WORD * order.tokens}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    usage = {"prompt_tokens": 1, "completion_tokens": order.tokens, "total_tokens": order.tokens + 1}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    return {**head, "choices": [choice], "usage": usage}


async def _serve(number: int) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Backend, HOST, 0, family=socket.AF_INET, backlog=1024) for _ in range(number)]
    print("ready on", *(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await wait_for_sigterm()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
