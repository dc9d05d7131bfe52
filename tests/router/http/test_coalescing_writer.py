"""The head of a streamed response is sent together with its first event. No write is held back longer than one turn of
the event loop, and none is lost."""

import asyncio
import json
from typing import Any

import pytest

from router.api.http.server import CoalescingWriter
from tests.router.http.harness import HELLO, running_http_router
from tests.specialist.server.harness import running_replica, sim


class _Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def _holding() -> tuple[_Transport, CoalescingWriter]:
    transport = _Transport()
    writer: Any = transport
    joining = CoalescingWriter(writer, asyncio.get_running_loop())
    joining.hold()
    return transport, joining


async def _with_the_next() -> None:
    transport, joining = _holding()
    for data in (b"head", b"body", b"more"):
        joining.write(data)
    await asyncio.sleep(0)
    assert transport.written == [b"headbody", b"more"]


async def _without_a_next() -> None:
    transport, joining = _holding()
    joining.write(b"head")
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [b"head"]
    joining.write(b"body")
    assert transport.written == [b"head", b"body"]


async def _before_an_end() -> None:
    transport, joining = _holding()
    joining.write(b"head")
    joining.close()
    await asyncio.sleep(0)
    assert transport.written == [b"head"] and joining.is_closing()


async def _to_a_closed_transport() -> None:
    transport, joining = _holding()
    joining.write(b"head")
    transport.close()
    await asyncio.sleep(0)
    assert transport.written == []


@pytest.mark.parametrize("case", [_with_the_next, _without_a_next, _before_an_end, _to_a_closed_transport])
def test_held_write_is_flushed(case: Any) -> None:
    asyncio.run(case())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_stream_head_is_sent_with_the_first_event(version: str) -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        body = json.dumps({"model": "octet/writer", "messages": HELLO, "max_tokens": 4, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: octet\r\ncontent-type: application/json\r\n"
        asked = f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body
        reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
        writer.write(asked)
        first = await reader.read(1 << 16)
        assert first.startswith(b"HTTP/1.1 200") and b"\r\n\r\n" in first and b"data: {" in first
        assert (await reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()
        watch = await fronted.send("HEAD", "/v1/overview/events")
        assert (watch.status, watch.body) == (200, b"")
