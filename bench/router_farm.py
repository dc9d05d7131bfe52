"""Many simulated replicas in one process, so that what is measured beside them is the router.

`python -m bench.router_farm DIRECTORY SPECIALIST...` listens on DIRECTORY/SPECIALIST-0.sock and -1.sock, and with the
hose on DIRECTORY/hose-0.sock, until it is terminated, and says so in a line.
"""

import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from bench.router_hose import NAME as HOSE
from bench.router_hose import start_hose
from octet.clock import SystemClock
from specialist.engines.sim import CostModel
from specialist.service.server import Server
from specialist.service.settings import ReplicaSettings, ServiceSettings
from specialist.service.sim_replica import sim_replica

REPLICAS = 2
STEP = CostModel(0.001, 0.0, 0.0, 0.002, 0.0, 0.0, 0.0, 0.0)
"""A prompt takes a millisecond and a token two: quick, and asleep meanwhile."""


def socket_of(directory: Path, specialist: str, index: int) -> Path:
    return directory / f"{specialist}-{index}.sock"


async def _serve(directory: Path, specialists: list[str]) -> None:
    servers = []
    for name in specialists:
        for index in range(REPLICAS):
            settings = ReplicaSettings(name=name, engine="sim", num_blocks=4096, max_running=64)
            replica = sim_replica(settings, SystemClock(), STEP)
            servers.append(Server(replica, ServiceSettings(socket=socket_of(directory, name, index))))
    hose = await start_hose(socket_of(directory, HOSE, 0))
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
