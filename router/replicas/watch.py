"""What a replica says of itself, as it says it: one stream of health and one of load."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from random import Random

import grpc
from grpc_health.v1 import health_pb2

from octet.mishap import mishap
from octet.rpc.finite import is_finite
from octet.v1 import specialist_pb2 as wire
from router.replicas.pace import Pace
from router.replicas.replica import Replica

_log = logging.getLogger(__name__)
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class Watcher:
    def __init__(self, replica: Replica, pace: Pace, random: Random, told: Callable[[], None]) -> None:
        """`told` is called after every piece of news."""
        self._replica = replica
        self._random = random
        self._told = told
        interval_ms, heartbeat_ms = (max(1, round(seconds * 1000)) for seconds in (pace.interval, pace.heartbeat))
        self._ask_load = wire.WatchLoadRequest(min_interval_ms=interval_ms, heartbeat_ms=heartbeat_ms)
        self._load = replica.channel.unary_stream(
            "/octet.v1.Specialist/WatchLoad", wire.WatchLoadRequest.SerializeToString
        )
        self._health = replica.channel.unary_stream(
            "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest.SerializeToString
        )
        """Both give bytes, which are parsed here: gRPC would log what it cannot parse and hand over nothing."""

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(self._watch_health, "health"))
            tasks.create_task(self._keep(self._watch_load, "load"))

    async def _keep(self, watch: Callable[[], AsyncGenerator[None, None]], what: str) -> None:
        """Again and again, whatever the replica says. A lost connection is waited for inside; pauses are for one that
        refuses to be watched. The same complaint is made once, until it is heard from again."""
        pause = _FIRST_PAUSE
        complaint = ""
        while True:
            try:
                async with aclosing(watch()) as news:
                    async for _ in news:
                        pause, complaint = _FIRST_PAUSE, ""
                        self._told()
            except Exception as error:
                words = _words(error)
                if words != complaint and not _is_away(error):
                    _log.warning("%s does not tell its %s: %s", self._replica.name, what, words)
                    complaint = words
            self._told()
            await asyncio.sleep(pause * (0.5 + self._random.random()))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _watch_health(self) -> AsyncGenerator[None, None]:
        call = self._health(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        try:
            async for raw in call:
                response = health_pb2.HealthCheckResponse.FromString(raw)
                self._replica.connected(response.status == health_pb2.HealthCheckResponse.SERVING)
                yield
        except Exception as error:
            self._replica.lost(_words(error))
            raise
        finally:
            call.cancel()
        self._replica.lost("its health is told no more")

    async def _watch_load(self) -> AsyncGenerator[None, None]:
        call = self._load(self._ask_load, wait_for_ready=True)
        self._replica.num_watches += 1
        try:
            async for raw in call:
                if mishap("report.lost"):
                    continue
                self._replica.heard(_report(raw))
                yield
        finally:
            self._replica.num_watches -= 1
            call.cancel()


def _report(raw: bytes) -> wire.LoadReport:
    """Raises ValueError, DecodeError."""
    report: wire.LoadReport = wire.LoadReport.FromString(raw)
    if not is_finite(report):
        raise ValueError("a number in its report is not finite")
    return report


def _is_away(error: Exception) -> bool:
    """Nothing to complain about: the replica's own line says that it is lost."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
