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
MOST_STREAMS = 32
"""At once, of each call that may ask for ever."""
Around = Callable[[], AbstractContextManager[object]]
"""Is entered before anything is read, and may raise Refusal."""


def one_request(handler: Any, around: Around, seconds: float) -> Any:
    """The same call; its one message is read inside of `around`, in so many seconds."""
    behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary

    async def serve(_: Any, context: Context) -> Any:
        try:
            with around():
                request = understood(await _read(context, seconds), handler.request_deserializer)
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

    def __init__(self, seconds: float = READ_SECONDS) -> None:
        self._seconds = seconds
        self._rooms = Rooms(MOST_STREAMS)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return many_requests(handler, lambda: self._rooms.enter(details.method))
        return one_request(handler, _nothing_around, self._seconds)


@contextmanager
def _nothing_around() -> Iterator[None]:
    yield


async def _read(context: Context, seconds: float) -> bytes:
    """Raises Refusal."""
    try:
        async with asyncio.timeout(seconds):
            request = await context.read()
    except TimeoutError:
        raise _late(seconds) from None
    if request is aio.EOF:
        raise invalid("request", "one message", "none")
    return bytes(request)


def _late(seconds: float) -> Refusal:
    return Refusal(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        wire.ERROR_REASON_DEADLINE,
        f"the request did not come within {seconds:g} s",
        field=UNREAD,
    )
