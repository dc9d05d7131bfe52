"""Connections whose other end does its worst: it never ends its request, or never reads its answer."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from bench.http_caller import stream_request
from bench.router_hose import NAME as HOSE
from bench.router_site import Site
from octet.v1 import inference_pb2 as wire

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_WINDOW_SETTING = 4
_WINDOW = 1024
"""Bytes of an answer that the other side may send, ever: its window is never opened again."""
_SMALL = 4096
"""Bytes of a receive buffer: it is soon full."""
_WORDS = 100_000
"""More than any buffer on the way holds."""
Hold = Callable[[], Coroutine[Any, Any, None]]
"""One connection, from its beginning until the other side cuts it off."""


@asynccontextmanager
async def holding(where: Site, count: int) -> AsyncIterator[None]:
    """`count` of them, of every kind as many; who is cut off comes again."""
    kinds = _kinds(where)
    tasks = [asyncio.create_task(_again(kinds[number % len(kinds)])) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _kinds(where: Site) -> list[Hold]:
    http, grpc = where.http_port, int(where.router.rpartition(":")[2])
    half = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9"
    return [
        lambda: _silent(http, half),
        lambda: _silent(http, stream_request(HOSE, "go", _WORDS)),
        lambda: _shut(grpc, _half_a_call()),
        lambda: _shut(grpc, _unread_call()),
    ]


async def _again(hold: Hold) -> None:
    while True:
        with suppress(OSError):
            await hold()
        await asyncio.sleep(0.5)


async def _silent(port: int, said: bytes) -> None:
    """Nothing is read but that the connection ends."""
    loop = asyncio.get_running_loop()
    with socket.socket() as held:
        held.setblocking(False)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        await loop.sock_connect(held, ("127.0.0.1", port))
        await loop.sock_sendall(held, said)
        while not _is_cut(held):
            await asyncio.sleep(1.0)


def _is_cut(held: socket.socket) -> bool:
    """TCP_INFO's first byte is the connection's state; 1 is established."""
    return held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != b"\x01"


async def _shut(port: int, said: bytes) -> None:
    """Well-behaved to the eye: settings and pings are answered, and the window stays shut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind in (_SETTINGS, _PING) and not flags & _ACK:
                writer.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
    except asyncio.IncompleteReadError:
        return
    finally:
        writer.close()


def _half_a_call() -> bytes:
    """Headers that promise more of themselves."""
    return _PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, 0, 1, _header(":method", "POST"))


def _unread_call() -> bytes:
    request = wire.InferRequest(prompt="go", force_specialists=[HOSE], max_tokens=_WORDS).SerializeToString()
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/octet.v1.Inference/Generate",
        ":authority": "octet",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    headers = b"".join(_header(name, value) for name, value in fields.items())
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, _WINDOW_SETTING.to_bytes(2, "big") + _WINDOW.to_bytes(4, "big"))
        + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, b"\0" + len(request).to_bytes(4, "big") + request)
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _header(name: str, value: str) -> bytes:
    """As HPACK writes what it is not to remember; both are shorter than 127 bytes."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
