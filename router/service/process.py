"""A router as a process: starts, says that it is ready, drains when told to end."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from octet.clock import SystemClock
from octet.config.ensemble import Ensemble
from octet.config.reload import ConfigWatch
from octet.rpc.bind import address_of
from octet.supervise.status import Status
from router.service.opinions import open_opinions
from router.service.server import Server
from router.service.settings import RouterSettings

FLUSH_SECONDS = 10.0
"""For what is being answered when something else went wrong. After a drain nothing is, and this is not waited for."""
_BEAT_SECONDS = 1.0
_DIGITS = 12
_SWITCH_SECONDS = 0.0005
"""How long the event loop may keep the classifier's thread waiting for the interpreter, and the other way round."""


def _say(line: str) -> None:
    print(line, flush=True)


Watching = Callable[[Path, Ensemble], ConfigWatch]


def serve(
    ensemble: Ensemble, settings: RouterSettings, say: Callable[[str], None] = _say, watching: Watching = ConfigWatch
) -> int:
    """Until SIGTERM or SIGINT, which drain: 0. A second SIGINT ends at once: 130. SIGHUP reads the configuration.

    Raises ValueError, OSError, BindRefused for what must be put right first.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    return uvloop.run(_serve(ensemble, settings, say, watching))


async def _serve(ensemble: Ensemble, settings: RouterSettings, say: Callable[[str], None], watching: Watching) -> int:
    signals = _Signals()
    beating = asyncio.create_task(_beat(Status.from_environment()))
    async with open_opinions(ensemble, SystemClock()) as opinions:
        server = Server(ensemble, settings, opinions)
        try:
            await server.start()
            if ensemble.source is not None:
                signals.reload = server.follow(watching(ensemble.source, ensemble))
            if await _first(server.warm(), signals.asked):
                gc.freeze()  # what is there now stays: no collection has to walk it while requests wait
                say(_ready_line(server, ensemble, settings, opinions.digest))
            await signals.asked.wait()
            await _first(server.drain(), signals.at_once)
        finally:
            await server.stop(0 if signals.at_once.is_set() else FLUSH_SECONDS)
            beating.cancel()
    return 130 if signals.at_once.is_set() else 0


async def _beat(status: Status) -> None:
    """Signs of life for whoever supervises this process: as long as the event loop turns."""
    while True:
        status.alive()
        await asyncio.sleep(_BEAT_SECONDS)


class _Signals:
    """What the signals have asked for."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self.reload: Callable[[], None] | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.asked.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _interrupt(self) -> None:
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()

    def _hang_up(self) -> None:
        if self.reload is not None:
            self.reload()


async def _first(work: Coroutine[Any, Any, None], event: asyncio.Event) -> bool:
    """Whether the work is done before the event is set. Raises what it raised."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    return False


def _ready_line(server: Server, ensemble: Ensemble, settings: RouterSettings, classifier: str) -> str:
    also = "" if server.http is None else f" and {server.http.url}"
    return (
        f"octet router ready on {address_of(settings, server.port)}{also} ({len(ensemble.specialists)} specialists, "
        f"{len(server.fleet.replicas)} replicas, classifier {classifier[:_DIGITS]})"
    )
