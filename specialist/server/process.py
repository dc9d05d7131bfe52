"""A replica as a process: start, readiness line, signals."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable

import uvloop

from octet.clock import Clock
from octet.rpc.listener import format_address
from specialist.server.replica import AssembledReplica
from specialist.server.server import ReplicaServer
from specialist.server.settings import ServiceSettings

FLUSH_SECONDS = 10.0  # time for callers to read their streams to the end
BEAT_SECONDS = 1.0
STEP_SECONDS = 30.0  # an engine that takes longer for one step counts as hung
_SWITCH_SECONDS = 0.0005  # how long the engine's thread may keep the interpreter while the event loop waits for it


def serve(
    replica: AssembledReplica,
    settings: ServiceSettings,
    report_ready: Callable[[str], None] = lambda line: print(line, flush=True),
    beat: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return 0. Return 130 after a second SIGINT, and 1 if the engine dies.
    `beat` is called every second unless the event loop or the engine hangs. Raises BindRefused or WarmUpFailed."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    return uvloop.run(_serve(replica, settings, report_ready, beat))


async def _serve(
    replica: AssembledReplica, settings: ServiceSettings, report_ready: Callable[[str], None], beat: Callable[[], None]
) -> int:
    server = ReplicaServer(replica, settings)
    beating = asyncio.create_task(_beat(server, replica.clock, beat))
    signals = _Signals()
    try:
        if not await signals.wait_first(asyncio.create_task(server.start())):
            return 130
        gc.collect()
        gc.freeze()  # these objects stay, so that no collection has to visit them while requests wait
        report_ready(_ready_line(replica, settings, server))
        await signals.wait_first(asyncio.create_task(signals.drain.wait()), asyncio.create_task(server.failed.wait()))
        if signals.drain.is_set():
            await signals.wait_first(asyncio.create_task(server.drain()), asyncio.create_task(server.failed.wait()))
    finally:
        await server.stop(0 if signals.end_now.is_set() else FLUSH_SECONDS)
        beating.cancel()
    if signals.end_now.is_set():
        return 130
    return 1 if server.failed.is_set() else 0


async def _beat(server: ReplicaServer, clock: Clock, beat: Callable[[], None]) -> None:
    while True:
        since = server.engine.stepping_since
        if since is None or clock.now() - since < STEP_SECONDS:
            beat()
        await asyncio.sleep(BEAT_SECONDS)


class _Signals:
    """Tracks SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.end_now = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.drain.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        if self.drain.is_set():
            self.end_now.set()
        self.drain.set()

    async def wait_first(self, *tasks: "asyncio.Task[object]") -> bool:
        """Wait for one of the tasks, or return False on a second SIGINT. Raises the task's error."""
        end_now = asyncio.create_task(self.end_now.wait())
        done, pending = await asyncio.wait({*tasks, end_now}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        for task in done:
            task.result()
        return end_now not in done


def _ready_line(replica: AssembledReplica, settings: ServiceSettings, server: ReplicaServer) -> str:
    pool = replica.scheduler.pool
    kernels = ", ".join(f"{kernel.op} {kernel.choice}" for kernel in replica.kernels)
    return (
        f"octet specialist {replica.lane.specialist} ready on {format_address(settings, server.port)} "
        f"(model {replica.model.name}, engine {replica.engine_name}, kernels: {kernels}, "
        f"{pool.capacity} blocks of {pool.block_size}{_metrics_address(settings, server)})"
    )


def _metrics_address(settings: ServiceSettings, server: ReplicaServer) -> str:
    if settings.metrics is None or server.metrics is None:
        return ""
    scheme = "http" if settings.metrics.tls is None else "https"
    return f", metrics at {scheme}://{format_address(settings.metrics, server.metrics.port)}/metrics"
