"""Calls whose request does not come. One holds a place from its first header on, and not for ever."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc
from grpc import aio

from octet.rpc.calls import Context, refuse
from octet.rpc.refusal import Refusal, invalid, queue_full
from octet.rpc.understood import all_understood, understood
from octet.v1 import error_pb2 as wire

READ_SECONDS = 20.0
"""For the request, once its call has begun: else calls without one would take all there are."""
UNREAD = "request"
"""The field of a refusal with reason DEADLINE for a request that did not come: nobody's deadline but the reader's."""
MOST_SILENT = 256
"""Calls at once whose request has not come. Most bring it at once; on slow links some do not."""
_AGAIN_SECONDS = 1.0
MOST_STREAMS = 32
"""At once, of each call that may ask for ever."""
Around = Callable[[], AbstractContextManager[object]]
"""Is entered before anything is read, and may raise Refusal."""


class Silence:
    """Calls whose request has not come. Each is waited for, but of too many the one that has been silent for longest is
    not: so they never take all the calls there are, however many are begun."""

    def __init__(self, seconds: float = READ_SECONDS, most: int = MOST_SILENT) -> None:
        self._seconds = seconds
        self._most = most
        self._waits: dict[asyncio.Timeout, None] = {}
        """In the order in which they began."""

    async def read(self, context: Context) -> bytes:
        """Raises Refusal."""
        wait = asyncio.timeout(self._seconds)
        try:
            async with wait:
                self._waits[wait] = None
                self._give_up_too_many()
                request = await context.read()
        except TimeoutError:
            raise (_late(self._seconds) if wait in self._waits else _too_many(self._most)) from None
        finally:
            self._waits.pop(wait, None)
        if request is aio.EOF:
            raise invalid("request", "one message", "none")
        return bytes(request)

    def _give_up_too_many(self) -> None:
        """Never whoever came last. Whose time is over at this moment goes by itself."""
        while len(self._waits) > self._most:
            oldest = next(iter(self._waits))
            del self._waits[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())


def one_request(handler: Any, around: Around, silence: Silence) -> Any:
    """The same call; its one message is read inside of `around`."""
    behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary

    async def serve(_: Any, context: Context) -> Any:
        try:
            with around():
                request = understood(await silence.read(context), handler.request_deserializer)
                serving = behaviour(request, context)
                del request
                return await serving
        except Refusal as refusal:
            await refuse(context, refusal)

    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(serve, None, handler.response_serializer)
    return grpc.stream_unary_rpc_method_handler(serve, None, handler.response_serializer)


def many_requests(handler: Any, around: Around) -> Any:
    """The same call, a stream of questions and answers, as reflection's."""

    async def serve(requests: Any, context: Context) -> AsyncIterator[Any]:
        try:
            with around():
                asked = all_understood(requests, handler.request_deserializer)
                async for answer in handler.stream_stream(asked, context):
                    yield answer
        except Refusal as refusal:
            await refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(serve, None, handler.response_serializer)


class Rooms:
    """How many of each call there are at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside: Counter[str] = Counter()

    @contextmanager
    def enter(self, method: str) -> Iterator[None]:
        """Raises Refusal."""
        if self._inside[method] >= self._most:
            raise queue_full("being answered", self._most, None)
        self._inside[method] += 1
        try:
            yield
        finally:
            self._inside[method] -= 1


class ReadInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Before a server that asks nobody who they are."""

    def __init__(self, silence: Silence) -> None:
        self._silence = silence
        self._rooms = Rooms(MOST_STREAMS)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return many_requests(handler, lambda: self._rooms.enter(details.method))
        return one_request(handler, _nothing_around, self._silence)


@contextmanager
def _nothing_around() -> Iterator[None]:
    yield


def _too_many(most: int) -> Refusal:
    return queue_full("being read", most, _AGAIN_SECONDS)


def _late(seconds: float) -> Refusal:
    return Refusal(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        wire.ERROR_REASON_DEADLINE,
        f"the request did not come within {seconds:g} s",
        field=UNREAD,
    )
