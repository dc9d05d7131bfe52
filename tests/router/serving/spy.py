"""A replica whose behaviour a test defines, and which records its requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octet.rpc.handlers import Context, streaming_handler, unary_handler
from octet.v1 import specialist_pb2 as wire
from tests.router.serving.attached import METHOD, SpyAttachment, StreamContext

Behaviour = Callable[[wire.GenerateRequest, Context], Awaitable[None]]
REVISION = "0" * 64
ACCEPTED = wire.GenerateEvent(accepted=wire.Accepted(lane=wire.Lane(specialist="writer", revision=REVISION)))
CHUNK = wire.GenerateEvent(chunk=wire.Chunk(text="x", token_ids=[1]))
USAGE = wire.GenerateEvent(usage=wire.Usage(finish_reason=wire.FINISH_REASON_STOP, completion_tokens=1))


async def answer(_: wire.GenerateRequest, context: Context) -> None:
    for event in (ACCEPTED, CHUNK, USAGE):
        await context.write(event)


async def hang(_: wire.GenerateRequest, context: Context) -> None:
    await asyncio.Event().wait()


class SpyReplica:
    attaches = False  # whether its callers may attach a call
    num_asked = num_attached = 0  # requests to all spies, and those on attached calls

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.asked: list[wire.GenerateRequest] = []
        self.metadata: list[dict[str, Any]] = []
        self.seconds_left: list[float] = []
        self.heartbeats: list[int] = []
        """The report intervals, in milliseconds, that watchers of its load have requested."""
        self.reports = True
        self.last_report: wire.LoadReport | None = None
        """The report that every watch sends once before it stays silent."""
        self.revision = REVISION
        self.num_live = 0
        self.port = 0
        self.counts: list[wire.GenerateRequest] = []
        self.count: int | BaseException | None = None
        """The response to CountTokens, or None if it never responds."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def generate(self, request: wire.GenerateRequest, context: Context) -> None:
        self.asked.append(request)
        SpyReplica.num_asked += 1
        SpyReplica.num_attached += isinstance(context, StreamContext)
        self.metadata.append(dict(context.invocation_metadata()))
        self.seconds_left.append(context.time_remaining())
        self.num_live += 1
        try:
            await self.behave(request, context)
        finally:
            self.num_live -= 1

    async def count_tokens(self, request: wire.GenerateRequest) -> wire.CountTokensResponse:
        self.counts.append(request)
        if self.count is None:
            await asyncio.Event().wait()
        if isinstance(self.count, BaseException):
            raise self.count
        return wire.CountTokensResponse(prompt_tokens=self.count)

    async def watch(self, request: wire.WatchLoadRequest, context: Context) -> None:
        self.heartbeats.append(request.heartbeat_ms)
        while self.last_report is None:
            if self.reports:
                await context.write(
                    wire.LoadReport(running=self.num_live, max_running=8, max_waiting=8, revision=self.revision)
                )
            await asyncio.sleep(request.heartbeat_ms / 1000)
        await context.write(self.last_report)
        await asyncio.Event().wait()


@asynccontextmanager
async def running_spy(behave: Behaviour = answer, port: int = 0) -> AsyncIterator[SpyReplica]:
    spy = SpyReplica(behave)
    server = grpc.aio.server()
    handlers = {
        "Generate": streaming_handler(wire.GenerateRequest, wire.GenerateEvent, spy.generate, 4 << 20),
        "CountTokens": unary_handler(wire.GenerateRequest, wire.CountTokensResponse, spy.count_tokens, 1 << 20),
        "WatchLoad": streaming_handler(wire.WatchLoadRequest, wire.LoadReport, spy.watch, 1 << 20),
    }
    if SpyReplica.attaches:

        async def attach(requests: Any, context: Any) -> None:
            await SpyAttachment(spy.generate).serve(requests, context)

        handlers[METHOD] = grpc.stream_stream_rpc_method_handler(attach)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("octet.v1.Specialist", handlers),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    spy.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield spy
    finally:
        await server.stop(0)
