"""The drain gate: holds new calls while a server shuts down."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio

_QUIET_SECONDS = 0.25  # time without a new call; even on a busy machine, gRPC delivers a call within that time
_MAX_WAIT_SECONDS = 2.0
_MAX_WALL_SECONDS = 5.0  # the limit if the event loop hardly runs
_TICK_SECONDS = 0.01
_MAX_TICK_SECONDS = 0.02  # a longer tick counts as this long: while the loop was blocked, no call could be delivered
_HEALTH_PREFIX = "/grpc.health."


class DrainGate:
    """Holds new calls while a server drains. Used only on the event loop."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._num_arrived = 0
        self.num_held = 0

    async def enter(self) -> None:
        """Wait while the gate is held; otherwise return immediately."""
        self._num_arrived += 1
        if not self._open.is_set():
            self.num_held += 1
            try:
                await self._open.wait()
            finally:
                self.num_held -= 1

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold new calls, and wait until no more arrive. The caller stops all listeners inside the `with` block, so
        that held calls are refused and can be retried on another server. Not reentrant."""
        self._open.clear()
        try:
            await self.wait_until_quiet()
            yield
        finally:
            self._open.set()

    async def wait_until_quiet(self) -> None:
        """Wait until no call arrives for a while. The longer calls keep arriving, the shorter this pause may be."""
        now = asyncio.get_running_loop().time
        waited = quiet = 0.0
        end = now() + _MAX_WALL_SECONDS
        while quiet < _QUIET_SECONDS * (1 - waited / _MAX_WAIT_SECONDS) and now() < end:
            start, num_before = now(), self._num_arrived
            await asyncio.sleep(_TICK_SECONDS)
            tick = min(now() - start, _MAX_TICK_SECONDS)
            waited += tick
            quiet = quiet + tick if self._num_arrived == num_before else 0.0


class DrainGateInterceptor(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Sends every call through the gate, except health checks."""

    def __init__(self, gate: DrainGate) -> None:
        self._gate = gate

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        if not details.method.startswith(_HEALTH_PREFIX):
            await self._gate.enter()
        return await continuation(details)


async def begin_shutdown(*stops: Awaitable[None]) -> "asyncio.Future[list[None]]":
    """Start all shutdowns at once, and return a future that completes when all have ended."""
    ending = asyncio.gather(*stops)
    await asyncio.sleep(0)
    return ending
