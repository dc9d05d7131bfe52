"""Before the doors of a server, so that its end tells everybody. Told to stop, gRPC cancels without a word what it has
taken from a connection and not yet handed over; a socket that is closed resets whoever was not let in yet."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio

_STILL_SECONDS = 0.25
"""Without anybody new. Whoever came is handed over within that on a machine that has much else to do."""
_MOST_SECONDS = 2.0
_LONGEST_SECONDS = 5.0
"""Of a loop that hardly turns."""
_HEALTH = "/grpc.health."
_TURN_SECONDS = 0.01
_LONGEST_TURN_SECONDS = 0.02
"""That counts: what is longer is time in which the loop stood still, and nobody could be handed over."""


class Doorstep:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._gate = asyncio.Event()
        self._gate.set()
        self._num_come = 0
        self.num_held = 0

    async def come(self) -> None:
        """Returns at once, but while the doors are being closed."""
        self._num_come += 1
        if not self._gate.is_set():
            self.num_held += 1
            try:
                await self._gate.wait()
            finally:
                self.num_held -= 1

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Begins when it is still. Whoever comes meanwhile waits to the end of this context, in which all doors are to
        be told that they take no more: so he who asks again as soon as he is refused does not ask here. One at a
        time."""
        self._gate.clear()
        try:
            await self.still()
            yield
        finally:
            self._gate.set()

    async def still(self) -> None:
        """Returns when nobody has come for a while: a shorter one the longer they go on coming."""
        now = asyncio.get_running_loop().time
        waited = still = 0.0
        end = now() + _LONGEST_SECONDS
        while still < _STILL_SECONDS * (1 - waited / _MOST_SECONDS) and now() < end:
            began, before = now(), self._num_come
            await asyncio.sleep(_TURN_SECONDS)
            turned = min(now() - began, _LONGEST_TURN_SECONDS)
            waited += turned
            still = still + turned if self._num_come == before else 0.0


class DoorstepInterceptor(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Every call comes over it, but who asks how the server is."""

    def __init__(self, doorstep: Doorstep) -> None:
        self._doorstep = doorstep

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        if not details.method.startswith(_HEALTH):
            await self._doorstep.come()
        return await continuation(details)


async def begun(*stops: Awaitable[None]) -> "asyncio.Future[list[None]]":
    """Ends of servers, each of which has been told; the future is over when they are."""
    ending = asyncio.gather(*stops)
    await asyncio.sleep(0)
    return ending
