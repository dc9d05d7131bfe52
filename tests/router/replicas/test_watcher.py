"""A replica that sends malformed reports is still watched, and the error is logged once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from admission.breakers import CircuitBreaker
from octet import background
from octet.background import run_forever
from octet.clock import SystemClock
from octet.v1 import specialist_pb2 as wire
from router.dispatch.replicas.fleet import ReplicaWatcher, ReportIntervals
from router.dispatch.replicas.replica import Replica
from router.dispatch.transport import READ_LIMITS, ReplicaTarget, open_transport
from tests.patience import PATIENCE
from tests.specialist.server.harness import run

NONSENSE = b"\xff\xff"
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()
REPORT = wire.LoadReport(running=3, max_running=8).SerializeToString()


class RepeatingStream:
    """A stream that repeats these bytes to every watcher."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.num_asked = 0

    async def watch(self, _: bytes, context: Any) -> None:
        self.num_asked += 1
        while True:
            await context.write(self.content)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watched(health: RepeatingStream, load: RepeatingStream) -> AsyncIterator[Replica]:
    server = grpc.aio.server()
    for service, method, speaker in (
        ("grpc.health.v1.Health", "Watch", health),
        ("octet.v1.Specialist", "WatchLoad", load),
    ):
        handlers = {method: grpc.unary_stream_rpc_method_handler(speaker.watch)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    target = ReplicaTarget("0", f"127.0.0.1:{port}")
    clock = SystemClock()
    breaker = CircuitBreaker(clock, failures=3, cool_down=1.0, max_cool_down=1.0)
    channel = open_transport()(target, READ_LIMITS)
    replica = Replica("stl", target, channel, breaker, clock, max_running=8)
    watching = run_forever(ReplicaWatcher(replica, ReportIntervals(0.05, 0.1), Random(0), lambda: None).run, "watching")
    try:
        yield replica
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await channel.close()
        await server.stop(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def test_malformed_reports_end_neither_watch(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        health, load = RepeatingStream(SERVING), RepeatingStream(REPORT)
        async with watched(health, load) as replica:
            await until(lambda: replica.is_usable and replica.report is not None)
            load.content = NONSENSE
            await until(lambda: load.num_asked >= 3)
            assert replica.is_connected, "the health stream must be independent of the load stream"
            load.content = REPORT
            result = replica.num_signals
            await until(lambda: replica.num_signals > result and replica.should_report)
            health.content = NONSENSE
            await until(lambda: not replica.is_connected)
            await until(lambda: health.num_asked >= 3)
            health.content = SERVING
            await until(lambda: replica.is_usable)

    run(scenario())
    complaints = [record.getMessage() for record in caplog.records if "does not report" in record.getMessage()]
    assert [("load" in words, "health" in words) for words in complaints] == [(True, False), (False, True)]
    assert "has failed" not in caplog.text


def test_background_task_restarts_and_logs_its_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_RESTART_SECONDS", 0.01)
    num_begun = 0

    async def work() -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == 1:
            raise RuntimeError("by mistake")
        if num_begun > 2:
            await asyncio.sleep(60)

    async def scenario() -> None:
        task = run_forever(work, "the work")
        await until(lambda: num_begun == 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    run(scenario())
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "CRITICAL"]
    assert "by mistake" in caplog.text
