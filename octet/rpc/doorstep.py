"""Before every call of a gRPC server, so that its end tells everybody. Told to stop, gRPC cancels without a word the
calls that it has taken from a connection and not yet handed over."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from grpc import aio

_STILL_SECONDS = 0.25
"""Without anybody new. Whoever came is handed over within that on a machine that has much else to do."""
_MOST_SECONDS = 2.0


class Doorstep(aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._held: asyncio.Event | None = None
        """Set when they are let go on."""
        self._last = 0.0
        """When somebody came who is held."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        if self._held is not None:
            self._last = asyncio.get_running_loop().time()
            await self._held.wait()
        return await continuation(details)

    async def stop(self, server: Any, grace: float) -> None:
        """Whoever comes waits until gRPC has told his connection that it takes no more; so he who asks again as soon
        as he is refused does not ask here. Then all that are inside get `grace` seconds; with none, all is over at
        once."""
        if grace > 0:
            self._held = asyncio.Event()
            await self._still()
        stopping = asyncio.ensure_future(server.stop(grace))
        await asyncio.sleep(0)  # told
        if self._held is not None:
            self._held.set()
        await stopping

    async def _still(self) -> None:
        """Until nobody has come for a while: a shorter one the longer they go on coming."""
        now = asyncio.get_running_loop().time
        self._last = began = now()
        while (patience := _STILL_SECONDS * (1 - (now() - began) / _MOST_SECONDS)) > (still := now() - self._last):
            await asyncio.sleep(patience - still)
