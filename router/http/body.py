"""The body of a request, read no further than it may be long, and not for ever."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.types import Receive

from octet.rpc.calls import CallerGone
from router.http.connection import connection_of
from router.http.fault import RATE_LIMIT, Fault

READ_SECONDS = 20.0
"""For all of it."""
SMALL_BYTES = 64 << 10
"""Of every body, which are read whatever else is: who sends large ones slowly keeps nobody else out."""
_RETRY_SECONDS = 1
"""Bodies that are being read are soon read, or let go."""
_CLOSE = {"connection": "close"}
_PLAIN = {"accept-encoding": "identity"}


class Bodies:
    """All that are being read at once. Belongs to the event loop."""

    def __init__(self, most: int, most_together: int, seconds: float = READ_SECONDS) -> None:
        self._most = most
        self._most_together = most_together
        self._seconds = seconds
        self._num_bytes = 0

    async def read(self, request: Request) -> bytes:
        """Raises Fault, CallerGone."""
        headers = request.headers
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            got = repr(headers.get("content-type", "")[:60])
            raise Fault(
                415, f"content-type must be application/json, got {got}", code="unsupported_media_type", headers=_CLOSE
            )
        _check_plain(headers.get("content-encoding", ""))
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._most:
            is_coming = headers.get("expect", "").lower() != "100-continue"
            raise self._too_large(f"{int(length[:20]):,}", is_coming=is_coming)
        connection = connection_of(request.scope)
        if connection is not None and connection.has_all():
            return await self._read(request.receive)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(request.receive)
        except TimeoutError:
            message = f"the body did not come within {self._seconds:g} s"
            raise Fault(408, message, code="request_timeout", headers=_CLOSE) from None

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        held = 0
        try:
            async for part in parts(receive):
                body += part
                held += len(part)
                self._num_bytes += len(part)
                if held > self._most:
                    body.clear()
                    raise self._too_large("more", is_coming=True)
                if held > SMALL_BYTES and self._num_bytes > self._most_together:
                    raise Fault(
                        429,
                        "too many large requests are being read",
                        kind=RATE_LIMIT,
                        code="queue_full",
                        headers={**_CLOSE, "retry-after": str(_RETRY_SECONDS)},
                    )
        finally:
            self._num_bytes -= held
        return bytes(body)

    def _too_large(self, got: str, *, is_coming: bool) -> Fault:
        message = f"the body must be at most {self._most:,} bytes, got {got}"
        fault = Fault(413, message, code="request_too_large", headers=_CLOSE)
        fault.body_is_coming = is_coming
        return fault


def _check_plain(encoding: str) -> None:
    """Raises Fault."""
    if encoding.strip().lower() not in ("", "identity"):
        message = f"content-encoding must be left out: a body is read as it is, got {encoding[:60]!r}"
        raise Fault(415, message, param="content-encoding", code="unsupported_media_type", headers={**_CLOSE, **_PLAIN})


async def parts(receive: Receive) -> AsyncIterator[bytes]:
    """Raises CallerGone."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
