"""A connection that is kept open never stalls for forty milliseconds.

Such a stall arises if the server sends the head and the first chunk in two writes. The server's kernel holds back the
second small segment until the first is acknowledged (Nagle), and the caller's kernel delays the acknowledgement by
forty milliseconds. The first request on a connection is not affected.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import pytest

from octet.v1.specialist_pb2 import Chunk
from tests.router.http.harness import HELLO, HttpHarness, answer_with, running_http_router
from tests.router.serving.spy import running_spy

REQUESTS = 24
STEP = 0.035
"""Limit in seconds: less than a delayed acknowledgement, and far more than a request takes here."""
_BODY = json.dumps({"model": "octet/writer", "messages": HELLO, "max_tokens": 8, "stream": True}).encode()
_REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n" % len(_BODY)
) + _BODY
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = b"f\r\ndata: a word\n\n\n\r\n"
_LAST = b"0\r\n\r\n"


def typical(taken: list[float]) -> float:
    """Return the lower quartile of the times of all requests but the first. A stall delays every one of them, but a
    busy machine delays only some."""
    return sorted(taken[1:])[len(taken) // 4]


async def first_chunks(port: int) -> list[float]:
    """Return the seconds to the first chunk of each of several consecutive requests on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = []
    for _ in range(REQUESTS):
        began = perf_counter()
        writer.write(_REQUEST)
        await reader.readuntil(b"data: ")
        taken.append(perf_counter() - began)
        await reader.readuntil(_LAST)
    writer.close()
    await writer.wait_closed()
    return taken


@asynccontextmanager
async def stalling(*, no_delay: bool) -> AsyncIterator[int]:
    """Yield the port of a server that sends the head and the first chunk in separate writes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = writer.get_extra_info("socket")
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, no_delay)
        while await reader.read(1 << 16):
            for part in (_HEAD, _CHUNK, _LAST):
                writer.write(part)
                await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
        left.set()

    left = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await left.wait()


@asynccontextmanager
async def routed() -> AsyncIterator[HttpHarness]:
    words = answer_with(*(Chunk(text=" word", token_ids=[7]) for _ in range(8)))
    async with running_spy(words) as spy, running_http_router({"writer": [spy.address]}) as fronted:
        yield fronted


@pytest.mark.slow
async def test_router_does_not_stall_on_a_kept_connection() -> None:
    async with routed() as fronted:
        taken = await first_chunks(fronted.port)
        assert typical(taken) < STEP, taken


@pytest.mark.slow
async def test_router_does_not_stall_with_the_openai_client() -> None:
    async with routed() as fronted:
        taken = [await _by_openai(fronted) for _ in range(REQUESTS)]
        assert fronted.connections == 1, "the connection must be kept"
        assert typical(taken) < STEP, taken


@pytest.mark.slow
async def test_measurement_detects_a_server_with_nagle() -> None:
    async with stalling(no_delay=False) as port:
        stalled = await first_chunks(port)
    async with stalling(no_delay=True) as port:
        free = await first_chunks(port)
    assert typical(free) < STEP < typical(stalled), (free, stalled)


async def test_every_connection_disables_nagle() -> None:
    async with routed() as fronted, fronted.connected(_REQUEST) as reader:
        await reader.readuntil(_LAST)
        (connection,) = fronted.sockets()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def _by_openai(fronted: HttpHarness) -> float:
    asked: Any = {"model": "octet/writer", "messages": HELLO, "max_tokens": 8}
    began = perf_counter()
    stream = await fronted.openai.chat.completions.create(**asked, stream=True)
    first = 0.0
    async for _ in stream:
        first = first or perf_counter() - began
    return first
