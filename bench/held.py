"""Connections whose other end does its worst: it never ends its request, or never reads its answer."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from grpc import aio

from bench.http_caller import stream_request
from bench.router_hose import NAME as HOSE
from bench.router_site import Site
from octet.v1 import inference_pb2 as wire

_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""The preface and empty settings."""
_HEADERS = bytes([0, 0, 4, 1, 0]) + (1).to_bytes(4, "big") + b"\x83\x86\x84\x41"
"""The beginning of a call's headers, which promises more."""
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
        lambda: _silent(grpc, _HTTP2 + _HEADERS),
        lambda: _unread_call(where.router),
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


async def _unread_call(address: str) -> None:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.lookahead_bytes", _SMALL),
        ("grpc.http2.bdp_probe", 0),
    ]
    async with aio.insecure_channel(address, options) as channel:
        request = wire.InferRequest(prompt="go", force_specialists=[HOSE], max_tokens=_WORDS)
        call = channel.unary_stream("/octet.v1.Inference/Generate")(request.SerializeToString())
        await call.code()
