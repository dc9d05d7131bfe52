"""The operator's service behind a real socket, on an event loop of its own."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import grpc

from octet.clock import SystemClock
from octet.config.ensemble import Ensemble, SpecialistConfig
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.api.operator.operations import OperatorApi
from router.api.operator.service import OperatorService
from router.quality.slo import SloTracker
from tests.router.operator.memory import NOW_MS, Memory, Rows, Shelf
from tests.router.overview.harness import viewed

SERVICE = "/octet.v1.Operator/"
COUNTS = wire.ShadowCounts(ordered=9, sent=8, answered=6, shed=1, failed=1, compared=5)


@dataclass
class Operated:
    memory: Memory
    rows: Rows
    shelf: Shelf
    service: OperatorService
    loop: asyncio.AbstractEventLoop
    port: int
    stop: Callable[[], None]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def until(self, condition: Callable[[], bool]) -> None:
        async def poll() -> None:
            async with asyncio.timeout(60):
                while not condition():
                    await asyncio.sleep(0.005)

        self.on_loop(poll())


@contextmanager
def operated(rows: Rows | None = None, stall_seconds: float = 20.0) -> Iterator[Operated]:
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    memory, shelf, kept = Memory(), Shelf(), rows or Rows()
    parts: Any = memory, shelf, kept  # they stand in for the control plane and the archives
    slos = SloTracker(Ensemble((SpecialistConfig("debug"),)), memory.breakers, SystemClock(), time.time)

    async def start() -> tuple[OperatorService, Any, int]:
        desk = OperatorApi(parts[0], parts[1], slos)
        service = OperatorService(desk, parts[2], lambda: COUNTS, lambda: NOW_MS, stall_seconds, view=viewed().view)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((service.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return service, server, port

    service, server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(20)

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(20)

    try:
        yield Operated(memory, kept, shelf, service, loop, port, stop)
    finally:
        stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def error_of(error: Any) -> error_pb2.Error:
    beside = dict(error.trailing_metadata() or ())
    found: error_pb2.Error = error_pb2.Error.FromString(beside["octet-error-bin"])
    return found
