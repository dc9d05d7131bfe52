"""Replicas that cost as little as the HTTP backends and keep to the same orders: what is measured is the router.

`python -m bench.router_peers.grpc_backend NUMBER` listens on so many ports of this machine, says which in a line, and
serves until it is terminated.
"""

import asyncio
import signal
import sys
from time import monotonic
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bench.router_peers.http_backend import HOST
from bench.router_peers.order import WORD, Order
from octet.rpc.calls import Context, relaying, streaming
from octet.v1 import specialist_pb2 as wire

_MOST_BYTES = 4 << 20
_MANY = 1024
_ACCEPTED = wire.GenerateEvent(accepted=wire.Accepted(lane=wire.Lane(specialist="word"))).SerializeToString()
_CHUNK = wire.GenerateEvent(chunk=wire.Chunk(text=WORD, token_ids=[1234])).SerializeToString()


async def _generate(ask: wire.GenerateRequest, context: Context) -> None:
    order = Order.read(ask.chat.messages[-1].content.encode())
    pace, began = order.pace_us / 1e6, monotonic()
    await context.write(_ACCEPTED)
    for number in range(order.tokens):
        if pace and number:
            await asyncio.sleep(max(0.0, began + number * pace - monotonic()))
        await context.write(_CHUNK)
    usage = wire.Usage(finish_reason=wire.FINISH_REASON_LENGTH, completion_tokens=order.tokens)
    await context.write(wire.GenerateEvent(usage=usage).SerializeToString())


async def _watch(ask: wire.WatchLoadRequest, context: Context) -> None:
    while True:
        await context.write(wire.LoadReport(max_running=_MANY, max_waiting=_MANY))
        await asyncio.sleep(ask.heartbeat_ms / 1000)


async def _start() -> tuple[Any, int]:
    """A server, and its port."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", _MOST_BYTES)])
    handlers = {
        "Generate": relaying(wire.GenerateRequest, _generate, _MOST_BYTES),
        "WatchLoad": streaming(wire.WatchLoadRequest, wire.LoadReport, _watch, _MOST_BYTES),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("octet.v1.Specialist", handlers),))
    servicer: Any = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    return server, port


async def _serve(number: int) -> None:
    started = [await _start() for _ in range(number)]
    print("ready on", *(port for _, port in started), flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await asyncio.gather(*(server.stop(0) for server, _ in started))


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
