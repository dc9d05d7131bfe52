"""Many simulated replicas in one process, and one that writes tokens as fast as it can, to measure the router."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from octet.clock import SystemClock
from octet.rpc.handlers import Context, relay_handler, streaming_handler
from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim.engine import CostModel
from specialist.server.replica import create_sim_replica
from specialist.server.server import ReplicaServer
from specialist.server.settings import ReplicaSettings, ServiceSettings

NAME = "hose"
_MOST_BYTES = 1 << 20
_MANY = 1024
_ACCEPTED = wire.GenerateEvent(accepted=wire.Accepted(lane=wire.Lane(specialist=NAME))).SerializeToString()
_CHUNK = wire.GenerateEvent(chunk=wire.Chunk(text=" word", token_ids=[1234])).SerializeToString()


async def start_hose(socket: Path) -> Any:
    server = grpc.aio.server()
    handlers = {
        "Generate": relay_handler(wire.GenerateRequest, _generate, _MOST_BYTES),
        "WatchLoad": streaming_handler(wire.WatchLoadRequest, wire.LoadReport, _watch, _MOST_BYTES),
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


REPLICAS = 2
STEP = CostModel(0.001, 0.0, 0.0, 0.002, 0.0, 0.0, 0.0, 0.0)
# a prompt takes 1 ms and a token 2 ms, asleep


def socket_of(directory: Path, specialist: str, index: int) -> Path:
    return directory / f"{specialist}-{index}.sock"


async def _serve(directory: Path, specialists: list[str]) -> None:
    servers = []
    for name in specialists:
        for index in range(REPLICAS):
            settings = ReplicaSettings(name=name, engine="sim", num_blocks=4096, max_running=64)
            replica = create_sim_replica(settings, SystemClock(), STEP)
            servers.append(ReplicaServer(replica, ServiceSettings(socket=socket_of(directory, name, index))))
    hose = await start_hose(socket_of(directory, NAME, 0))
    await asyncio.gather(*(server.start() for server in servers))
    print(f"{len(servers)} replicas ready", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await hose.stop(0)
    await asyncio.gather(*(server.stop(0) for server in servers))


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # sixteen engines share this interpreter: none keeps it for long
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
