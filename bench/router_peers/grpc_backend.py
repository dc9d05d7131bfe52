"""Replicas that cost as little as the HTTP backends and follow the same orders: the measured cost is the router's.

`python -m bench.router_peers.grpc_backend NUMBER` listens on this number of ports, prints them in a line, and serves
until it is terminated. As in every replica of Octet, tokens that wait to be sent become one message. If the order sets
a pace, tokens also wait for the minimum gap between two messages.
"""

import asyncio
import sys
from functools import lru_cache
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bench.processes import HOST, wait_for_sigterm
from bench.router_peers.cases import WORD, Order
from octet.rpc.handlers import CallerGone, Context, streaming_handler
from octet.v1 import specialist_pb2 as wire
from specialist.server.settings import ServiceSettings

_MOST_BYTES = 4 << 20
_MANY = 1024
_GAP = ServiceSettings().piece_gap
_ACCEPTED = wire.GenerateEvent(accepted=wire.Accepted(lane=wire.Lane(specialist="word"))).SerializeToString()


@lru_cache(maxsize=4096)
def _chunk(tokens: int) -> bytes:
    chunk = wire.Chunk(text=WORD * tokens, token_ids=[1234] * tokens)
    return bytes(wire.GenerateEvent(chunk=chunk).SerializeToString())


class TokenStream:
    """Produces tokens at the order's pace or, without a pace, one per turn of the event loop. Never waits for reads."""

    def __init__(self, order: Order) -> None:
        self._order, self._loop = order, asyncio.get_running_loop()
        self._began = self._loop.time()
        self._produced = 1
        self._more = asyncio.Event()
        if order.joins and not order.pace_us:
            self._loop.call_soon(self._produce)

    async def beyond(self, sent: int) -> int:
        if self._order.pace_us:
            return await self._in_time(sent)
        while self._produced <= sent:
            self._more.clear()
            await self._more.wait()
        return self._produced

    async def _in_time(self, sent: int) -> int:
        pace, now = self._order.pace_us / 1e6, self._loop.time()
        gap = _GAP if sent and self._order.joins else 0.0
        due, end = (self._began + number * pace for number in (sent, self._order.tokens - 1))
        await asyncio.sleep(max(0.0, min(max(due, now + gap), end) - now))
        on_time = int((self._loop.time() - self._began) / pace) + 1
        return min(self._order.tokens, max(sent + 1, on_time))

    def _produce(self) -> None:
        if self._produced < self._order.tokens:
            self._produced += 1
            self._more.set()
            self._loop.call_soon(self._produce)


async def _generate(ask: wire.GenerateRequest, context: Context) -> None:
    order = Order.read(ask.chat.messages[-1].content.encode())
    stream, sent = TokenStream(order), 0
    await _send(context, _ACCEPTED)
    while sent < order.tokens:
        produced = await stream.beyond(sent) if order.joins or order.pace_us else sent + 1
        await _send(context, _chunk(produced - sent))
        sent = produced
    usage = wire.Usage(finish_reason=wire.FINISH_REASON_LENGTH, completion_tokens=order.tokens)
    await _send(context, wire.GenerateEvent(usage=usage).SerializeToString())


async def _send(context: Context, event: object) -> None:
    try:
        await context.write(event)
    except Exception as error:  # nothing can be written to a call that has ended
        raise CallerGone from error


async def _watch(ask: wire.WatchLoadRequest, context: Context) -> None:
    while True:
        await _send(context, wire.LoadReport(max_running=_MANY, max_waiting=_MANY))
        await asyncio.sleep(ask.heartbeat_ms / 1000)


async def start_backend(address: str = f"{HOST}:0") -> tuple[Any, int]:
    """Return the server and its port."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", _MOST_BYTES)])
    handlers = {
        "Generate": streaming_handler(wire.GenerateRequest, None, _generate, _MOST_BYTES),
        "WatchLoad": streaming_handler(wire.WatchLoadRequest, wire.LoadReport, _watch, _MOST_BYTES),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("octet.v1.Specialist", handlers),))
    servicer: Any = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port(address)
    await server.start()
    return server, port


async def _serve(number: int) -> None:
    started = [await start_backend() for _ in range(number)]
    print("ready on", *(port for _, port in started), flush=True)
    await wait_for_sigterm()
    await asyncio.gather(*(server.stop(0) for server, _ in started))


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
