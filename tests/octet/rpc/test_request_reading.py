"""Calls that send no request, and malformed requests, to a server without API keys."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octet.rpc.handlers import MAX_STREAMS, RequestReader, RequestReadInterceptor, streaming_handler, unary_handler
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import specialist_pb2 as wire
from simulation.event_loop import HeapLoop
from tests.patience import PATIENCE

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SECONDS = 1.5
"""Seconds after which the server ends a call that sends no request. In most other tests, the limit is too long to
matter."""
MOST_CALLS = 64


@asynccontextmanager
async def served(request_reader: RequestReader | None = None) -> AsyncIterator[str]:
    async def describe(_: wire.DescribeRequest) -> wire.DescribeResponse:
        return wire.DescribeResponse(context=7)

    async def generate(_: wire.GenerateRequest, context: Any) -> None:
        await context.write(wire.GenerateEvent())

    reading = RequestReadInterceptor(request_reader or RequestReader(PATIENCE))
    server = grpc.aio.server(interceptors=(reading,), maximum_concurrent_rpcs=MOST_CALLS)
    handlers = {
        "Describe": unary_handler(wire.DescribeRequest, wire.DescribeResponse, describe, 1000),
        "Generate": streaming_handler(wire.GenerateRequest, wire.GenerateEvent, generate, 1000),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("octet.v1.Specialist", handlers),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((reflection.SERVICE_NAME,), server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def never() -> AsyncIterator[bytes]:
    await asyncio.get_running_loop().create_future()
    yield b""


async def once(raw: bytes) -> AsyncIterator[bytes]:
    yield raw


async def outcome(call: Any) -> tuple[grpc.StatusCode, int]:
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ()).get("octet-error-bin", b"")
        return error.code(), error_pb2.Error.FromString(raw).reason
    return await call.code(), 0


@pytest.mark.parametrize("method", [CHECK, WATCH, REFLECT, "/octet.v1.Specialist/Describe"])
async def test_malformed_message_is_an_invalid_argument(method: str) -> None:
    async with served() as address, grpc.aio.insecure_channel(address) as channel:
        for raw in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff"):
            received = await outcome(channel.stream_stream(method)(once(raw), timeout=PATIENCE))
            result = (grpc.StatusCode.INVALID_ARGUMENT, error_pb2.ERROR_REASON_MALFORMED)
            assert received == result or (raw[-2:] == b"\x01\xff" and method.endswith("Describe")), raw


async def test_calls_without_a_request_free_their_slot() -> None:
    request_reader = RequestReader(SECONDS)
    async with served(request_reader) as address, grpc.aio.insecure_channel(address) as channel:
        method = "/octet.v1.Specialist/Generate"
        calls = [channel.stream_stream(method)(never()) for _ in range(MOST_CALLS)]
        codes = [code for code, _ in await asyncio.gather(*(outcome(call) for call in calls))]
        assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
        request_reader._seconds = PATIENCE
        described = await channel.unary_unary("/octet.v1.Specialist/Describe")(b"", timeout=PATIENCE)
        assert wire.DescribeResponse.FromString(described).context == 7
        empty = await outcome(channel.stream_stream(method)(_nothing(), timeout=PATIENCE))
        assert empty == (grpc.StatusCode.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_FIELD)


async def test_oldest_pending_read_is_refused_and_requests_are_served() -> None:
    """There are more pending calls than the server permits, and none would end by itself."""
    async with served(RequestReader(PATIENCE, max_pending=8)) as address, grpc.aio.insecure_channel(address) as channel:
        begin = channel.stream_stream("/octet.v1.Specialist/Generate")
        calls, received = [], []
        for _ in range(2 * MOST_CALLS):
            calls.append(begin(never()))
            received.append(asyncio.create_task(outcome(calls[-1])))
            described = await channel.unary_unary("/octet.v1.Specialist/Describe")(b"", timeout=PATIENCE)
            assert wire.DescribeResponse.FromString(described).context == 7
        async with asyncio.timeout(PATIENCE):
            # The eighth call from the end was refused to make room for the last Describe call.
            gone = await asyncio.gather(*received[:-7])
        result = (grpc.StatusCode.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_QUEUE_FULL)
        assert set(gone) == {result} and not any(task.done() for task in received[-7:])
        for call in calls:
            call.cancel()
        await asyncio.gather(*received, return_exceptions=True)


SHORT = 0.05


class SlowToCancel:
    """A call that ends some time after it is cancelled."""

    async def read(self) -> bytes:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
        raise AssertionError("no call was made")


class AnsweringCall:
    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return b"yes"


def test_expired_reads_do_not_count_as_pending() -> None:
    """In simulated time, because a busy machine may delay any read by more than the limit."""
    loop = HeapLoop()
    try:
        loop.run_until_complete(_expire_reads(RequestReader(SHORT, max_pending=2)))
    finally:
        loop.close()


async def _expire_reads(request_reader: RequestReader) -> None:
    silent = [asyncio.create_task(request_reader.read(SlowToCancel())) for _ in range(2)]
    await asyncio.sleep(0)  # both begin to wait
    await asyncio.sleep(SHORT)  # both limits pass at the same moment, before this wait ends
    assert all(task.cancelling() and not task.done() for task in silent)
    for _ in range(3):
        assert await request_reader.read(AnsweringCall()) == b"yes"
    received = await asyncio.gather(*silent, return_exceptions=True)
    assert all(isinstance(each, Refusal) for each in received)
    crowd = [asyncio.create_task(request_reader.read(SlowToCancel())) for _ in range(2)]
    await asyncio.sleep(0)
    assert await request_reader.read(AnsweringCall()) == b"yes", "every slot must be free again"
    received = await asyncio.gather(*crowd, return_exceptions=True)
    assert all(isinstance(each, Refusal) for each in received)


async def _nothing() -> AsyncIterator[bytes]:
    requests: tuple[bytes, ...] = ()
    for request in requests:
        yield request


async def test_request_streams_are_bounded() -> None:
    async with served() as address, grpc.aio.insecure_channel(address) as channel:
        reflect = channel.stream_stream(REFLECT)
        calls = [reflect(never()) for _ in range(MOST_CALLS - 1)]
        hearing = [asyncio.create_task(outcome(call)) for call in calls]
        refused = MOST_CALLS - 1 - MAX_STREAMS
        async with asyncio.timeout(PATIENCE):
            while sum(task.done() for task in hearing) < refused:
                await asyncio.sleep(0.01)
        await channel.unary_unary(CHECK)(b"", timeout=PATIENCE)
        codes = {task.result()[0] for task in hearing if task.done()}
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert sum(task.done() for task in hearing) == refused
        for call in calls:
            call.cancel()
        await asyncio.gather(*hearing, return_exceptions=True)
