"""Engines that speak OpenAI's dialect and cost next to nothing: what is measured before them is the router.

`python -m bench.router_peers.http_backend NUMBER` listens on so many ports of this machine, says which in a line, and
serves until it is terminated. A token is a write of its own, as engines do it.
"""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Iterator
from typing import cast

import uvloop

from bench.peers.process import HOST
from bench.router_peers.callers import WORD, Order, OrderMissing

MODEL = "word"
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_METHODS = (b"GET ", b"POST ")
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
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = bytearray()
        self._needed = 0
        self._transport: asyncio.Transport | None = None
        self._blocked = False
        self._waiting: Order | None = None  # continues once the transport can write
        self._said = 0
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by descent

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._waiting is not None:
            order, self._waiting = self._waiting, None
            self._say(order)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if len(self._heard) < self._needed:
            return
        for line, body in self._requests():
            self._answer(line, body)

    def _requests(self) -> Iterator[tuple[bytes, bytes]]:
        while (end := self._heard.find(_HEAD_END)) >= 0:
            head = bytes(self._heard[:end])
            _, found, rest = head.lower().partition(_LENGTH)
            length = int(rest.partition(b"\r\n")[0]) if found else 0
            begin = end + len(_HEAD_END)
            self._needed = begin + length
            if len(self._heard) < self._needed:
                return
            body = bytes(self._heard[begin : self._needed])
            del self._heard[: self._needed]
            self._needed = 0
            yield head.partition(b"\r\n")[0], body

    def _answer(self, line: bytes, body: bytes) -> None:
        if not line.startswith(_METHODS):  # a probe for HTTP/2
            self._close()
            return
        path = line.split(b" ")[1]
        if not path.endswith(b"/chat/completions"):
            self._send_json(_PAGES.get(path, {}), "200 OK" if path in _PAGES else "404 Not Found")
            return
        try:
            order = Order.read(body)
        except OrderMissing as error:
            self._send_json({"error": {"message": str(error)}}, "400 Bad Request")
            return
        if _STREAMED not in (body[:_MOST_HEAD] + body[-_MOST_HEAD:]).replace(b" ", b""):
            self._send_json(_whole(order))
            return
        self._said, self._began = 0, self._loop.time()
        self._write(_STREAM_HEAD + _WORD)
        self._said = 1
        self._go_on(order)

    def _go_on(self, order: Order) -> None:
        """A turn of the event loop between two tokens, so that each is a write of its own."""
        if order.pace_us:
            self._loop.call_at(self._began + self._said * order.pace_us / 1e6, self._say, order)
        else:
            self._loop.call_soon(self._say, order)

    def _say(self, order: Order) -> None:
        if self._transport is None:
            return
        if self._blocked:
            self._waiting = order
        elif self._said < order.tokens:
            self._write(_WORD)
            self._said += 1
            self._go_on(order)
        else:
            self._write(_STREAM_END)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

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
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }


async def _serve(number: int) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Backend, HOST, 0, family=socket.AF_INET, backlog=1024) for _ in range(number)]
    print("ready on", *(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
