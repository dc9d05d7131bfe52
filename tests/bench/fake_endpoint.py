"""A small OpenAI-compatible endpoint that can misbehave."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[["FakeEndpoint", asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class FakeEndpoint:
    reply: Reply
    models: tuple[str, ...] = ("small",)
    counts_tokens: bool = True
    spared: int = 2
    """Number of requests at the start that are answered normally, whatever reply is configured."""
    received: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    num_connections: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line]
                fields = {name.lower(): value for name, value in lines}
                self.keys.add(fields.get("authorization", ""))
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                await self._answer(head.split(b" ")[:2], body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, what: list[bytes], body: bytes, writer: asyncio.StreamWriter) -> None:
        if what == [b"GET", b"/v1/models"]:
            writer.write(plain(200, {"data": [{"id": name} for name in self.models]}))
            return
        self.received.append(json.loads(body))
        reply = well if len(self.received) <= self.spared else self.reply
        await reply(self, writer, self.received[-1])


async def well(endpoint: FakeEndpoint, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
    writer.write(SSE)
    for _ in range(asked["max_tokens"]):
        writer.write(event({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}))
        await asyncio.sleep(0)
    finish(endpoint, writer, asked)


def finish(endpoint: FakeEndpoint, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
    writer.write(event({"choices": [{"delta": {}, "finish_reason": "length"}], "usage": None}))
    if endpoint.counts_tokens:
        prompt = 7 + 2 * len(asked["messages"][0]["content"].split())
        usage = {"prompt_tokens": prompt, "completion_tokens": asked["max_tokens"]}
        writer.write(event({"choices": [], "usage": usage}))
    writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


def event(fields: dict[str, Any]) -> bytes:
    return chunk(b"data: " + json.dumps(fields).encode() + b"\n\n")


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def plain(status: int, fields: Any, headers: str = "") -> bytes:
    body = json.dumps(fields).encode()
    head = (
        f"HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def listening(endpoint: FakeEndpoint) -> AsyncIterator[str]:
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
