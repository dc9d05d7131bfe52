"""The grpc_status package can read the retry delay of a refusal."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.handlers import unary_handler
from octet.rpc.refusal import Refusal, invalid_field, queue_full
from octet.v1 import error_pb2

_ADDRESS = "127.0.0.1:0"


async def refused_with(refusal: Refusal) -> Any:
    """Return the rich status of a refused call, as grpc_status parses it."""

    async def refuse(_: error_pb2.Error) -> error_pb2.Error:
        raise refusal

    server = grpc.aio.server()
    handler = {"Ask": unary_handler(error_pb2.Error, error_pb2.Error, refuse, 1 << 20)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handler),))
    port = server.add_insecure_port(_ADDRESS)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/test.Test/Ask")(b"")
            with suppress(grpc.aio.AioRpcError):
                await call
            return await rpc_status.aio.from_call(call)
    finally:
        await server.stop(0)


@given(st.floats(0.001, 30.0))
def test_retry_info_equals_the_retry_after(seconds: float) -> None:
    refusal = queue_full("waiting", 8, seconds)
    key, raw = refusal.metadata()[1]
    assert key == "grpc-status-details-bin"
    details = error_pb2.StatusDetails.FromString(raw)
    info = error_details_pb2.RetryInfo()
    assert details.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == refusal.error.retry_after_ms


def test_grpc_client_reads_the_retry_info_of_a_call() -> None:
    status = asyncio.run(refused_with(queue_full("waiting", 8, 2.5)))
    info = error_details_pb2.RetryInfo()
    assert (status.code, status.message) == (8, "8 requests are already waiting")
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 2500


def test_no_retry_info_without_a_retry_after() -> None:
    assert asyncio.run(refused_with(queue_full("waiting", 8, None))) is None
    assert asyncio.run(refused_with(invalid_field("seed", "a number", "x"))) is None
