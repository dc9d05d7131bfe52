"""The gate before every gRPC call. Who may not call is refused before a byte of the request is read."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from octet.rpc.calls import Context, refuse
from octet.rpc.refusal import Refusal
from router.keys.access import RPCS, Access
from router.keys.gate import Gate, Pass
from router.keys.shown import from_metadata

_Behaviour = Callable[[Any, Context], Awaitable[Any]]


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        access = RPCS.get(details.method)
        if access is Access.OPEN:
            return await continuation(details)
        try:
            passed = self._gate.admit(access, from_metadata(details.invocation_metadata))
        except Refusal as refusal:
            return _refusing(refusal)
        handler = await continuation(details)
        return handler if handler is None else self._counted(handler, passed)

    def _counted(self, handler: Any, passed: Pass) -> Any:
        """Only what takes one message: a stream of questions, as reflection's, is let in and not counted."""
        if handler.request_streaming:
            return handler
        if handler.response_streaming:
            inside = self._inside(handler.unary_stream, passed)
            return grpc.unary_stream_rpc_method_handler(
                inside, handler.request_deserializer, handler.response_serializer
            )
        inside = self._inside(handler.unary_unary, passed)
        return grpc.unary_unary_rpc_method_handler(inside, handler.request_deserializer, handler.response_serializer)

    def _inside(self, behaviour: _Behaviour, passed: Pass) -> _Behaviour:
        async def serve(request: Any, context: Context) -> Any:
            try:
                with self._gate.inside(passed):
                    serving = behaviour(request, context)
                    del request
                    return await serving
            except Refusal as refusal:
                await refuse(context, refusal)

        return serve


def _refusing(refusal: Refusal) -> Any:
    """A stream, whatever the call is: so nothing is waited for."""

    async def say_no(_: Any, context: Context) -> None:
        await refuse(context, refusal)

    return grpc.stream_stream_rpc_method_handler(say_no)
