"""What a response needs of its connection beyond ASGI: to be ended at once, whatever it still holds, and to be written
to without a detour."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

EXTENSION = "octet.connection"
_SECONDS = 1.0
"""The end of a connection is a matter of one turn of the event loop."""


def never() -> bool:
    return False


def nothing() -> None:
    """Everything leaves as it is sent."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Of one request, in its scope's extensions."""

    end: Callable[[], None]
    """At once: what is buffered is dropped."""
    send: Send | None = None
    """The server's own: for the bodies of a response whose head has passed whoever stands in between."""
    is_free: Callable[[], bool] = never
    """What is sent now is taken at once, and nobody waits."""
    has_all: Callable[[], bool] = never
    """The whole request has come: who reads it does not wait."""
    hold: Callable[[], None] = nothing
    """What is sent next leaves together with what is sent at once behind it."""


def connection_of(scope: Scope) -> Connection | None:
    """None where the server is not ours."""
    found: Connection | None = scope.get("extensions", {}).get(EXTENSION)
    return found


async def gone(receive: Receive) -> None:
    """Returns when the caller is."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def abort(scope: Scope, receive: Receive) -> None:
    """The caller is gone, or reads nothing: what is buffered for it is dropped."""
    connection = connection_of(scope)
    if connection is None:
        return
    connection.end()
    async with asyncio.timeout(_SECONDS):
        await gone(receive)
