"""What a response needs of its connection beyond ASGI: to be ended at once, whatever it still holds."""

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope

EXTENSION = "octet.abort"
_SECONDS = 1.0
"""The end of a connection is a matter of one turn of the event loop."""


async def gone(receive: Receive) -> None:
    """Returns when the caller is."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def abort(scope: Scope, receive: Receive) -> None:
    """The caller is gone, or reads nothing: what is buffered for it is dropped."""
    end: Callable[[], None] | None = scope.get("extensions", {}).get(EXTENSION, {}).get("end")
    if end is None:
        return
    end()
    async with asyncio.timeout(_SECONDS):
        await gone(receive)
