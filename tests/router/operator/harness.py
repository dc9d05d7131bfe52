"""The operator service behind a real socket, on its own event loop."""

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
from router.api.grpc.services import OperatorService
from router.api.operations import OperatorApi
from router.quality.slo import SloTracker
from tests.patience import PATIENCE
from tests.router.operator.fake_control import NOW_MS, FakeComparisons, FakeControl, FakeReceipts
from tests.router.overview.harness import make_overviews

SERVICE = "/octet.v1.Operator/"
REASONS = [
    wire.ShadowReasonCount(outcome="shed", reason="no_budget", count=1),
    wire.ShadowReasonCount(outcome="failed", reason="timed_out", count=1),
]
COUNTS = wire.ShadowCounts(ordered=9, sent=8, answered=6, shed=1, failed=1, compared=5, reasons=REASONS)


@dataclass
class OperatorHarness:
    control: FakeControl
    rows: FakeComparisons
    receipts: FakeReceipts
    service: OperatorService
    loop: asyncio.AbstractEventLoop
    port: int
    stop: Callable[[], None]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def until(self, condition: Callable[[], bool]) -> None:
        async def poll() -> None:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await asyncio.sleep(0.005)

        self.on_loop(poll())


@contextmanager
def running_operator(rows: FakeComparisons | None = None, stall_seconds: float = 20.0) -> Iterator[OperatorHarness]:
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    control, receipts, kept = FakeControl(), FakeReceipts(), rows or FakeComparisons()
    parts: Any = control, receipts, kept  # These are fakes of the control plane and the archives.
    slos = SloTracker(Ensemble((SpecialistConfig("debug"),)), control.breakers, SystemClock(), time.time)

    async def start() -> tuple[OperatorService, Any, int]:
        api = OperatorApi(parts[0], parts[1], slos)
        overviews = make_overviews()
        overviews.wall[0] = NOW_MS
        service = OperatorService(api, parts[2], lambda: COUNTS, overviews.view, stall_seconds)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((service.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return service, server, port

    service, server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE)

    def stop() -> None:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(PATIENCE)

    try:
        yield OperatorHarness(control, kept, receipts, service, loop, port, stop)
    finally:
        stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


def error_of(error: Any) -> error_pb2.Error:
    beside = dict(error.trailing_metadata() or ())
    found: error_pb2.Error = error_pb2.Error.FromString(beside["octet-error-bin"])
    return found
