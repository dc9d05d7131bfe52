"""gRPC's own library reads when to try again out of a refusal."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.calls import unary
from octet.rpc.refusal import Refusal, invalid, queue_full
from octet.v1 import error_pb2

_ADDRESS = "127.0.0.1:0"


async def refused_with(refusal: Refusal) -> Any:
    """What a client's library makes of the status of a call that was refused."""

    async def refuse(_: error_pb2.Error) -> error_pb2.Error:
        raise refusal

    server = grpc.aio.server()
    handler = {"Ask": unary(error_pb2.Error, error_pb2.Error, refuse, 1 << 20)}
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
def test_the_delay_is_the_one_of_the_error(seconds: float) -> None:
    refusal = queue_full("waiting", 8, seconds)
    key, raw = refusal.metadata()[1]
    assert key == "grpc-status-details-bin"
    details = error_pb2.StatusDetails.FromString(raw)
    info = error_details_pb2.RetryInfo()
    assert details.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == refusal.error.retry_after_ms


def test_a_real_client_reads_it_from_a_real_call() -> None:
    status = asyncio.run(refused_with(queue_full("waiting", 8, 2.5)))
    info = error_details_pb2.RetryInfo()
    assert (status.code, status.message) == (8, "8 requests are waiting already")
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == 2500


def test_where_nothing_was_measured_nothing_is_promised() -> None:
    assert asyncio.run(refused_with(queue_full("waiting", 8, None))) is None
    assert asyncio.run(refused_with(invalid("seed", "a number", "x"))) is None
