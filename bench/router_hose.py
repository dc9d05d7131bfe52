"""A replica that says a thousand words as fast as the wire takes them: what is measured behind it is the relay."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octet.rpc.calls import Context, relaying, streaming
from octet.v1 import specialist_pb2 as wire

NAME = "hose"
_MOST_BYTES = 1 << 20
_MANY = 1024
_ACCEPTED = wire.GenerateEvent(accepted=wire.Accepted(lane=wire.Lane(specialist=NAME))).SerializeToString()
_CHUNK = wire.GenerateEvent(chunk=wire.Chunk(text=" word", token_ids=[1234])).SerializeToString()


async def start_hose(socket: Path) -> Any:
    """The server, serving."""
    server = grpc.aio.server()
    handlers = {
        "Generate": relaying(wire.GenerateRequest, _generate, _MOST_BYTES),
        "WatchLoad": streaming(wire.WatchLoadRequest, wire.LoadReport, _watch, _MOST_BYTES),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("octet.v1.Specialist", handlers),))
    servicer: Any = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


async def _generate(ask: wire.GenerateRequest, context: Context) -> None:
    await context.write(_ACCEPTED)
    for _ in range(ask.max_tokens):
        await context.write(_CHUNK)
    usage = wire.Usage(finish_reason=wire.FINISH_REASON_LENGTH, completion_tokens=ask.max_tokens)
    await context.write(wire.GenerateEvent(usage=usage).SerializeToString())


async def _watch(ask: wire.WatchLoadRequest, context: Context) -> None:
    while True:
        await context.write(wire.LoadReport(max_running=_MANY, max_waiting=_MANY))
        await asyncio.sleep(ask.heartbeat_ms / 1000)
