"""What a replica says of itself, as it says it: one stream of health and one of load."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from octet.v1 import specialist_pb2 as wire
from router.replicas.replica import Replica

_log = logging.getLogger(__name__)
_MIN_INTERVAL_MS = 50
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class Watcher:
    def __init__(self, replica: Replica, heartbeat_seconds: float, random: Random, told: Callable[[], None]) -> None:
        """`told` is called after every piece of news."""
        self._replica = replica
        self._random = random
        self._told = told
        heartbeat_ms = max(1, round(heartbeat_seconds * 1000))
        self._ask_load = wire.WatchLoadRequest(min_interval_ms=_MIN_INTERVAL_MS, heartbeat_ms=heartbeat_ms)
        self._load = replica.channel.unary_stream(
            "/octet.v1.Specialist/WatchLoad", wire.WatchLoadRequest.SerializeToString, wire.LoadReport.FromString
        )
        self._health = replica.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(self._watch_health))
            tasks.create_task(self._keep(self._watch_load))

    async def _keep(self, watch: Callable[[], AsyncIterator[None]]) -> None:
        """Again and again. A lost connection is waited for inside; pauses are for one that refuses to be watched."""
        pause = _FIRST_PAUSE
        while True:
            async for _ in watch():
                pause = _FIRST_PAUSE
                self._told()
            self._told()
            await asyncio.sleep(pause * (0.5 + self._random.random()))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _watch_health(self) -> AsyncIterator[None]:
        try:
            async for response in self._health(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                self._replica.connected(response.status == health_pb2.HealthCheckResponse.SERVING)
                yield
        except grpc.aio.AioRpcError as error:
            self._replica.lost(_words(error))
        else:
            self._replica.lost("its health is told no more")

    async def _watch_load(self) -> AsyncIterator[None]:
        try:
            async for report in self._load(self._ask_load, wait_for_ready=True):
                self._replica.reporting = True
                self._replica.heard(report)
                yield
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                _log.warning("%s does not report its load: %s", self._replica.name, _words(error))
        finally:
            self._replica.reporting = False


def _words(error: Any) -> str:
    return f"{error.code().name}: {error.details()}"
