"""A specialist as a process: starts, says that it is ready, drains when told to end."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable

import uvloop

from octet.clock import Clock
from octet.rpc.bind import address_of
from specialist.service.replica import Replica
from specialist.service.server import Server
from specialist.service.settings import ServiceSettings

FLUSH_SECONDS = 10.0
"""For callers to read the ends of their streams, once everything is answered."""
BEAT_SECONDS = 1.0
STEP_SECONDS = 30.0
"""An engine that takes longer over one step hangs."""
_SWITCH_SECONDS = 0.0005
"""How long the engine's thread keeps the interpreter while a verdict waits for it."""


def _say(line: str) -> None:
    print(line, flush=True)


def _nothing() -> None:
    """For whoever is not watched."""


def serve(
    replica: Replica,
    settings: ServiceSettings,
    say: Callable[[str], None] = _say,
    beat: Callable[[], None] = _nothing,
) -> int:
    """Until SIGTERM or SIGINT, which drain: 0. A second SIGINT ends at once: 130. A dead engine: 1.

    `beat` is called again and again while neither the event loop nor the engine hangs. Raises BindRefused, NotWarm.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    return uvloop.run(_serve(replica, settings, say, beat))


async def _serve(
    replica: Replica, settings: ServiceSettings, say: Callable[[str], None], beat: Callable[[], None]
) -> int:
    server = Server(replica, settings)
    beating = asyncio.create_task(_beat(server, replica.clock, beat))
    ends = _Ends()
    try:
        if not await ends.first_of(asyncio.create_task(server.start())):
            return 130
        gc.collect()
        gc.freeze()  # what is there now stays: no collection has to walk it while requests wait
        say(_ready_line(replica, settings, server))
        await ends.first_of(asyncio.create_task(ends.asked.wait()), asyncio.create_task(server.failed.wait()))
        if ends.asked.is_set():
            await ends.first_of(asyncio.create_task(server.drain()), asyncio.create_task(server.failed.wait()))
    finally:
        await server.stop(0 if ends.at_once.is_set() else FLUSH_SECONDS)
        beating.cancel()
    if ends.at_once.is_set():
        return 130
    return 1 if server.failed.is_set() else 0


async def _beat(server: Server, clock: Clock, beat: Callable[[], None]) -> None:
    while True:
        since = server.engine.stepping_since
        if since is None or clock.now() - since < STEP_SECONDS:
            beat()
        await asyncio.sleep(BEAT_SECONDS)


class _Ends:
    """What the signals have asked for."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.asked.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()

    async def first_of(self, *tasks: "asyncio.Task[object]") -> bool:
        """Whether one of the tasks is done before everything is to end at once. Raises what it raised."""
        impatience = asyncio.create_task(self.at_once.wait())
        done, pending = await asyncio.wait({*tasks, impatience}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()
        return impatience not in done


def _ready_line(replica: Replica, settings: ServiceSettings, server: Server) -> str:
    pool = replica.scheduler.pool
    kernels = ", ".join(f"{kernel.op} {kernel.choice}" for kernel in replica.kernels)
    return (
        f"octet specialist {replica.lane.specialist} ready on {address_of(settings, server.port)} "
        f"(model {replica.model.name}, engine {replica.engine_name}, kernels: {kernels}, "
        f"{pool.capacity} blocks of {pool.block_size}{_metrics_words(settings, server)})"
    )


def _metrics_words(settings: ServiceSettings, server: Server) -> str:
    if settings.metrics is None or server.metrics is None:
        return ""
    scheme = "http" if settings.metrics.tls is None else "https"
    return f", metrics at {scheme}://{address_of(settings.metrics, server.metrics.port)}/metrics"
