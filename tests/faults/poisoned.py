"""Replicas that die on a certain prompt and are then restarted: `python -m tests.faults.poisoned SOCKET ...`."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from octet.clock import SystemClock
from specialist.engines.sim.engine import CostModel, FaultSource
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.scheduling.step import Step
from specialist.server.replica import create_sim_replica
from specialist.server.server import ReplicaServer
from specialist.server.settings import ReplicaSettings, ServiceSettings

POISON = "kill at once"
SLOW_POISON = "kill after a delay"
"""With this prompt, the replica dies after a few tokens."""
DIED = "died of it"
_STATUS = 139
_A_WHILE = 5
_PACE = CostModel(0.001, 0.00001, 0.0, 0.01, 0.0002, 0.0, 0.0, 0.0)
_PAUSE_SECONDS = 0.3
"""Seconds before the restart: long enough for the router to notice the death."""


def die_on_poisoned_prompt() -> FaultSource:
    """Return a fault source that ends the process silently in the middle of a step with a poisonous prompt."""
    decode = sim_vocabulary().tokenizer.decode

    def look(step: Step) -> None:
        for row in step.rows:
            prompt = row.sequence.request.prompt
            text = decode(list(prompt))
            if POISON in text or (SLOW_POISON in text and row.stop >= len(prompt) + _A_WHILE):
                os._exit(_STATUS)

    return look


async def serve(socket: Path) -> None:
    """Serve until the parent process has ended."""
    parent = os.getppid()
    settings = ReplicaSettings(name="writer", engine="sim", num_blocks=512)
    server = ReplicaServer(
        create_sim_replica(settings, SystemClock(), _PACE, faults=die_on_poisoned_prompt()),
        ServiceSettings(socket=socket),
    )
    await server.start()
    print(f"ready on unix:{socket}", flush=True)
    while os.getppid() == parent:
        await asyncio.sleep(0.2)


def fork_replica(socket: Path) -> int:
    """Fork a replica from this process, which has imported all code but started no thread. Return its process id."""
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(serve(socket))
    os._exit(0)


def end(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    os._exit(0)


def main(sockets: list[Path]) -> NoReturn:
    signal.signal(signal.SIGTERM, end)
    living = {fork_replica(socket): socket for socket in sockets}
    while True:
        child, status = os.wait()
        socket = living.pop(child)
        if os.waitstatus_to_exitcode(status) != _STATUS:
            sys.exit(f"{socket} ended with {status}")
        print(DIED, flush=True)
        time.sleep(_PAUSE_SECONDS)
        living[fork_replica(socket)] = socket


if __name__ == "__main__":
    main([Path(given) for given in sys.argv[1:]])
