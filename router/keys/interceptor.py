"""The gate before every gRPC call. Who may not call is refused before a byte of the request is read."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from octet.rpc.calls import Context, refuse
from octet.rpc.refusal import Refusal
from octet.rpc.unread import MOST_SILENT, READ_SECONDS, Rooms, Silence, many_requests, one_request
from router.keys.access import RPCS, Access
from router.keys.gate import Gate, Pass
from router.keys.shown import from_metadata

MOST_UNCOUNTED = 32
"""At once, of each call that no key's limits count."""


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, gate: Gate, read_seconds: float = READ_SECONDS, most_silent: int = MOST_SILENT) -> None:
        self._gate = gate
        self._silence = Silence(read_seconds, most_silent)
        self._uncounted = Rooms(MOST_UNCOUNTED)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """A call counts from its beginning; a stream of questions is let in and not counted."""
        access, method = RPCS.get(details.method), details.method
        try:
            passed = self._gate.admit(access, from_metadata(details.invocation_metadata))
        except Refusal as refusal:
            return _refusing(refusal)
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return many_requests(handler, lambda: self._uncounted.enter(method))
        if access is Access.OPEN:
            return one_request(handler, lambda: self._inside(passed, method), self._silence)
        return one_request(handler, lambda: self._gate.inside(passed), self._silence)

    @contextmanager
    def _inside(self, passed: Pass, method: str) -> Iterator[None]:
        """Raises Refusal."""
        with self._gate.inside(passed), self._uncounted.enter(method):
            yield


def _refusing(refusal: Refusal) -> Any:
    """A stream, whatever the call is: so nothing is waited for."""

    async def say_no(_: Any, context: Context) -> None:
        await refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(say_no)
