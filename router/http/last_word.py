"""A response to somebody who is still sending: it is told at once, and what is sent meanwhile is read and dropped. A
connection that ends with bytes that nobody has read would take the answer with it."""

import asyncio
from contextlib import suppress

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from octet.rpc.calls import CallerGone
from router.http.body import parts

_LINGER_BYTES = 32 << 20
_LINGER_SECONDS = 5.0


class LastWord(JSONResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(CallerGone):
            await _drop(receive)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drop(receive: Receive) -> None:
    """Raises CallerGone."""
    num_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            async for part in parts(receive):
                num_bytes += len(part)
                if num_bytes > _LINGER_BYTES:
                    return
