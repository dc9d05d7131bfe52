"""Simulated replicas of all specialists in one process, and one replica that writes tokens as fast as it can."""

import asyncio
import sys
from pathlib import Path

import uvloop

from bench.processes import wait_for_sigterm
from bench.router_peers.grpc_backend import start_backend
from octet.clock import SystemClock
from specialist.engines.sim.engine import CostModel
from specialist.server.replica import create_sim_replica
from specialist.server.server import ReplicaServer
from specialist.server.settings import ReplicaSettings, ServiceSettings

FASTEST = "fastest"  # the specialist of the last replica
REPLICAS = 2
STEP = CostModel(0.001, 0.0, 0.0, 0.002, 0.0, 0.0, 0.0, 0.0)  # a prompt takes 1 ms and a token 2 ms, without CPU time


def socket_of(directory: Path, specialist: str, index: int) -> Path:
    return directory / f"{specialist}-{index}.sock"


async def _serve(directory: Path, specialists: list[str]) -> None:
    servers = []
    for name in specialists:
        for index in range(REPLICAS):
            settings = ReplicaSettings(name=name, engine="sim", num_blocks=4096, max_running=64)
            replica = create_sim_replica(settings, SystemClock(), STEP)
            servers.append(ReplicaServer(replica, ServiceSettings(socket=socket_of(directory, name, index))))
    fastest, _ = await start_backend(f"unix:{socket_of(directory, FASTEST, 0)}")
    await asyncio.gather(*(server.start() for server in servers))
    print(f"{len(servers)} replicas ready", flush=True)
    await wait_for_sigterm()
    await fastest.stop(0)
    await asyncio.gather(*(server.stop(0) for server in servers))


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # sixteen engines share this interpreter, so none may keep it for long
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
