"""The gate before every gRPC call. Who may not call is refused before a byte of the request is read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc import aio

from octet.rpc.calls import Context, refuse
from octet.rpc.refusal import Refusal, invalid, queue_full
from octet.v1 import error_pb2 as wire
from router.keys.access import RPCS, Access
from router.keys.gate import Gate, Pass
from router.keys.shown import from_metadata

READ_SECONDS = 20.0
"""For the request, once its call has begun: else calls without one would take all there are."""
MOST_UNCOUNTED = 32
"""At once, of each call that no key's limits count."""
_Behaviour = Callable[[Any, Context], Awaitable[Any]]


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, gate: Gate, read_seconds: float = READ_SECONDS) -> None:
        self._gate = gate
        self._read_seconds = read_seconds
        self._uncounted: Counter[str] = Counter()

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        access = RPCS.get(details.method)
        try:
            passed = self._gate.admit(access, from_metadata(details.invocation_metadata))
        except Refusal as refusal:
            return _refusing(refusal)
        handler = await continuation(details)
        if handler is None:
            return None
        if handler.request_streaming:
            return self._bounded(handler, details.method)
        return self._counted(handler, passed, details.method if access is Access.OPEN else "")

    def _bounded(self, handler: Any, method: str) -> Any:
        """A stream of questions, as reflection's, is let in and not counted."""

        async def serve(requests: Any, context: Context) -> AsyncIterator[Any]:
            try:
                with self._room(method):
                    async for answer in handler.stream_stream(requests, context):
                        yield answer
            except Refusal as refusal:
                await refuse(context, refusal)

        return grpc.stream_stream_rpc_method_handler(serve, handler.request_deserializer, handler.response_serializer)

    def _counted(self, handler: Any, passed: Pass, method: str) -> Any:
        """Its one message is read here, inside: a call counts from its beginning, and not for ever."""
        if handler.response_streaming:
            inside, make = self._inside(handler.unary_stream, passed, method), grpc.stream_stream_rpc_method_handler
        else:
            inside, make = self._inside(handler.unary_unary, passed, method), grpc.stream_unary_rpc_method_handler
        return make(inside, handler.request_deserializer, handler.response_serializer)

    def _inside(self, behaviour: _Behaviour, passed: Pass, method: str) -> _Behaviour:
        async def serve(_: Any, context: Context) -> Any:
            try:
                with self._gate.inside(passed), self._room(method):
                    request = await self._read(context)
                    serving = behaviour(request, context)
                    del request
                    return await serving
            except Refusal as refusal:
                await refuse(context, refusal)

        return serve

    async def _read(self, context: Context) -> Any:
        """Raises Refusal."""
        try:
            async with asyncio.timeout(self._read_seconds):
                request = await context.read()
        except TimeoutError:
            raise _late(self._read_seconds) from None
        if request is aio.EOF:
            raise invalid("request", "one message", "none")
        return request

    @contextmanager
    def _room(self, method: str) -> Iterator[None]:
        """Raises Refusal. Empty: as much as the key's limits say."""
        if method and self._uncounted[method] >= MOST_UNCOUNTED:
            raise queue_full("being answered", MOST_UNCOUNTED, None)
        self._uncounted[method] += 1
        try:
            yield
        finally:
            self._uncounted[method] -= 1


def _late(seconds: float) -> Refusal:
    return Refusal(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        wire.ERROR_REASON_DEADLINE,
        f"the request did not come within {seconds:g} s",
        field="request",
    )


def _refusing(refusal: Refusal) -> Any:
    """A stream, whatever the call is: so nothing is waited for."""

    async def say_no(_: Any, context: Context) -> None:
        await refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(say_no)
