"""Server-sent events to a caller that may read slowly, or not at all."""

import asyncio
from collections.abc import Mapping

from starlette.types import Scope, Send

from router.http.connection import connection_of, never, nothing

_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class Outlet:
    """One response."""

    def __init__(self, scope: Scope, send: Send, patience: float) -> None:
        """A caller that takes nothing for `patience` seconds is let go."""
        self._send = self._send_body = send
        self._patience = patience
        connection = connection_of(scope)
        if connection is not None and connection.send is not None:
            self._send_body = connection.send
        self._is_free = never if connection is None else connection.is_free
        self._hold = nothing if connection is None else connection.hold
        self.is_open = False

    async def say(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """The headers count with the first event. Raises TimeoutError."""
        if not self.is_open:
            self.is_open = True
            more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
            self._hold()
            await self._send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *more]})
        if self._is_free():
            await self._send_body({"type": "http.response.body", "body": body, "more_body": True})
        else:
            await self._write(body, more=True)

    async def end(self, body: bytes = b"") -> None:
        """Raises TimeoutError."""
        await self._write(body, more=False)

    async def nothing(self) -> None:
        """Instead of all events: there are none, and there will be none. Raises TimeoutError."""
        await self._send({"type": "http.response.start", "status": 204, "headers": []})
        await self.end()

    async def _write(self, body: bytes, *, more: bool) -> None:
        message = {"type": "http.response.body", "body": body, "more_body": more}
        if self._is_free():
            await self._send_body(message)
            return
        async with asyncio.timeout(self._patience):
            await self._send_body(message)
