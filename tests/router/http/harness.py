"""A router with an HTTP server in front of real replicas, and vendor clients and plain sockets to call it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from octet.v1 import specialist_pb2 as wire
from router.api.http.app import App
from router.api.http.server import HttpServer
from router.settings import HttpSettings
from specialist.engines.sim.engine import CostModel
from tests.patience import PATIENCE
from tests.router.serving.harness import RouterHarness, running_router
from tests.router.serving.spy import Behaviour

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

SLOW = CostModel(0.02, 0.00001, 0.0, 0.02, 0.00002, 0.0, 0.0, 0.0)
"""Costs with which a replica generates fifty tokens a second."""
HELLO = [{"role": "user", "content": "hello"}]


@dataclass
class HttpHarness:
    routed: RouterHarness
    port: int
    clients: AsyncExitStack
    """Closes the created clients. Clients are created lazily, because importing and creating them is slow."""

    @cached_property
    def openai(self) -> "AsyncOpenAI":
        """OpenAI's client without retries."""
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=f"{self._http.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
        self.clients.push_async_callback(client.close)
        return client

    @cached_property
    def anthropic(self) -> "AsyncAnthropic":
        """Anthropic's client without retries."""
        from anthropic import AsyncAnthropic

        client = AsyncAnthropic(base_url=self._http.url, api_key="none", max_retries=0, timeout=PATIENCE)
        self.clients.push_async_callback(client.close)
        return client

    @property
    def app(self) -> App:
        """The served application, whose limits tests may lower."""
        return self._http.app

    @property
    def connections(self) -> int:
        return len(self._http.live_connections)

    @property
    def is_http_idle(self) -> bool:
        """Whether no connection is open and no request is being handled, not even one that was pipelined."""
        return not self.connections and not self._http._server.server_state.tasks

    def sockets(self) -> list[socket.socket]:
        """Return the server-side sockets of all open connections."""
        return [each.transport.get_extra_info("socket") for each in self._http.live_connections]

    @property
    def _http(self) -> HttpServer:
        assert self.routed.server.http is not None
        return self.routed.server.http

    async def post(self, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> "HttpResponse":
        given = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        return await self.send("POST", path, body, given)

    async def ask(self, path: str = "/v1/chat/completions", **body: Any) -> "HttpResponse":
        asked = {"model": "octet/writer", "messages": HELLO, "max_tokens": 8, **body}
        return await self.post(json.dumps(asked).encode(), path)

    async def get(self, path: str) -> "HttpResponse":
        return await self.send("GET", path)

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> "HttpResponse":
        given = {"host": f"127.0.0.1:{self.port}", "connection": "close", **(headers or {})}
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
        return await self.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)

    async def raw(self, sent: bytes) -> "HttpResponse":
        """Send raw bytes. Return what the server sends until it closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            return HttpResponse.of(await reader.read())
        finally:
            writer.close()

    @asynccontextmanager
    async def connected(self, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            yield reader
        finally:
            writer.close()


@dataclass
class HttpResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, raw: bytes) -> "HttpResponse":
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = _unchunked(body)
        return cls(int(first.split()[1]), headers, body)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        assert set(self.json) == {"error"} and {"message", "type", "param", "code"} <= set(self.json["error"])
        return self.json["error"]

    @property
    def anthropic_error(self) -> Any:
        """The error in Anthropic's format. The request ids in the body and in the headers must be equal."""
        result = self.json
        assert set(result) == {"type", "error", "request_id"} and result["type"] == "error"
        assert result["request_id"] == self.headers["request-id"] == self.headers["x-request-id"]
        assert {"type", "message", "details"} <= set(result["error"]) and result["error"]["message"]
        return result["error"]

    @property
    def code(self) -> str:
        """The error code of an OpenAI or an Anthropic error."""
        own = self.json.get("type") == "error"
        result: str = self.anthropic_error["details"]["error_code"] if own else self.error["code"]
        return result

    @property
    def events(self) -> list[Any]:
        """The events of a stream, parsed from JSON. `[DONE]` stays a string."""
        found = [event.removeprefix("data: ") for event in self.body.decode().split("\n\n") if event]
        return [event if event == "[DONE]" else json.loads(event) for event in found]


def _unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    return found


@asynccontextmanager
async def running_http_router(
    replicas: Mapping[str, Sequence[str]], *, door: HttpSettings | None = None, **settings: Any
) -> AsyncIterator[HttpHarness]:
    async with running_router(replicas, http=door or HttpSettings(), **settings) as routed:
        assert routed.server.http is not None
        async with AsyncExitStack() as clients:
            yield HttpHarness(routed, routed.server.http.port, clients)


def answer_with(
    *chunks: wire.Chunk, seconds: float = 0.0, fails: BaseException | None = None, usage: wire.Usage | None = None
) -> Behaviour:
    """Return the behaviour of a replica that sends the chunks, waits, and then ends or fails."""
    ends = usage or wire.Usage(finish_reason=wire.FINISH_REASON_STOP, prompt_tokens=3, completion_tokens=len(chunks))

    async def behave(_: wire.GenerateRequest, context: Any) -> None:
        lane = wire.Lane(specialist="writer", revision="0" * 64)
        await context.write(wire.GenerateEvent(accepted=wire.Accepted(lane=lane, prompt_tokens=ends.prompt_tokens)))
        for chunk in chunks:
            await context.write(wire.GenerateEvent(chunk=chunk))
        await asyncio.sleep(seconds)
        if fails is not None:
            raise fails
        await context.write(wire.GenerateEvent(usage=ends))

    return behave
