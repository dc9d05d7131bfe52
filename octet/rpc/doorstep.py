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


class Doorstep:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._held: asyncio.Event | None = None
        """Set when they are let go on."""
        self._last = 0.0
        """When somebody came who is held."""

    async def come(self) -> None:
        """Returns at once, but while the doors are being closed."""
        if self._held is not None:
            self._last = asyncio.get_running_loop().time()
            await self._held.wait()

    @asynccontextmanager
    async def held(self, grace: float) -> AsyncIterator[None]:
        """Whoever comes waits to the end of this context, in which all doors are to be told that they take no more: so
        he who asks again as soon as he is refused does not ask here. Without any grace nobody is waited for."""
        self._held = asyncio.Event()
        try:
            if grace > 0:
                await self._still()
            yield
        finally:
            self._held.set()

    async def _still(self) -> None:
        """Until nobody has come for a while: a shorter one the longer they go on coming."""
        now = asyncio.get_running_loop().time
        self._last = began = now()
        while (patience := _STILL_SECONDS * (1 - (now() - began) / _MOST_SECONDS)) > (still := now() - self._last):
            await asyncio.sleep(patience - still)


class DoorstepInterceptor(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Every call comes over it."""

    def __init__(self, doorstep: Doorstep) -> None:
        self._doorstep = doorstep

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        await self._doorstep.come()
        return await continuation(details)


async def begun(*stops: Awaitable[None]) -> "asyncio.Future[list[None]]":
    """Ends of servers, each of which has been told; the future is over when they are."""
    ending = asyncio.gather(*stops)
    await asyncio.sleep(0)
    return ending
