"""Calls without a request, and requests that are none, at a server that asks nobody who they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octet.rpc.calls import streaming, unary
from octet.rpc.refusal import Refusal
from octet.rpc.unread import MOST_STREAMS, ReadInterceptor, Silence
from octet.v1 import error_pb2
from octet.v1 import specialist_pb2 as wire
from tests.service.harness import run

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SECONDS = 0.4
MOST_CALLS = 64


@asynccontextmanager
async def served(silence: Silence | None = None) -> AsyncIterator[str]:
    async def describe(_: wire.DescribeRequest) -> wire.DescribeResponse:
        return wire.DescribeResponse(context=7)

    async def generate(_: wire.GenerateRequest, context: Any) -> None:
        await context.write(wire.GenerateEvent())

    reading = ReadInterceptor(silence or Silence(SECONDS))
    server = grpc.aio.server(interceptors=(reading,), maximum_concurrent_rpcs=MOST_CALLS)
    handlers = {
        "Describe": unary(wire.DescribeRequest, wire.DescribeResponse, describe, 1000),
        "Generate": streaming(wire.GenerateRequest, wire.GenerateEvent, generate, 1000),
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
def test_what_is_no_message_is_the_callers_mistake(method: str) -> None:
    async def story() -> None:
        async with served() as address, grpc.aio.insecure_channel(address) as channel:
            for raw in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x01\xff"):
                heard = await outcome(channel.stream_stream(method)(once(raw), timeout=10))
                told = (grpc.StatusCode.INVALID_ARGUMENT, error_pb2.ERROR_REASON_MALFORMED)
                assert heard == told or (raw[-2:] == b"\x01\xff" and method.endswith("Describe")), raw

    run(story())


def test_places_that_calls_without_a_request_take_come_back() -> None:
    async def story() -> None:
        async with served() as address, grpc.aio.insecure_channel(address) as channel:
            method = "/octet.v1.Specialist/Generate"
            calls = [channel.stream_stream(method)(never()) for _ in range(MOST_CALLS)]
            codes = [code for code, _ in await asyncio.gather(*(outcome(call) for call in calls))]
            assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
            described = await channel.unary_unary("/octet.v1.Specialist/Describe")(b"", timeout=10)
            assert wire.DescribeResponse.FromString(described).context == 7
            empty = await outcome(channel.stream_stream(method)(_nothing(), timeout=10))
            assert empty == (grpc.StatusCode.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_FIELD)

    run(story())


def test_of_too_many_that_are_silent_the_oldest_goes_and_who_speaks_is_heard() -> None:
    """More of them than there are calls, and none would have gone by itself."""

    async def story() -> None:
        async with served(Silence(60.0, most=8)) as address, grpc.aio.insecure_channel(address) as channel:
            begin = channel.stream_stream("/octet.v1.Specialist/Generate")
            calls, heard = [], []
            for _ in range(2 * MOST_CALLS):
                calls.append(begin(never()))
                heard.append(asyncio.create_task(outcome(calls[-1])))
                described = await channel.unary_unary("/octet.v1.Specialist/Describe")(b"", timeout=10)
                assert wire.DescribeResponse.FromString(described).context == 7
            async with asyncio.timeout(10):
                gone = await asyncio.gather(*heard[:-7])  # the eighth went for the last who spoke
            told = (grpc.StatusCode.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_QUEUE_FULL)
            assert set(gone) == {told} and not any(task.done() for task in heard[-7:])
            for call in calls:
                call.cancel()
            await asyncio.gather(*heard, return_exceptions=True)

    run(story())


class Stubborn:
    """A call that does not end at once when it is given up."""

    async def read(self) -> bytes:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
        raise AssertionError("nobody has spoken")


class Speaking:
    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return b"yes"


def test_nobody_pays_for_those_whose_time_is_just_over() -> None:
    async def story() -> None:
        silence = Silence(0.05, most=2)
        silent = [asyncio.create_task(silence.read(Stubborn())) for _ in range(2)]
        while not any(task.cancelling() for task in silent):
            await asyncio.sleep(0)
        for _ in range(3):
            assert await silence.read(Speaking()) == b"yes"
        heard = await asyncio.gather(*silent, return_exceptions=True)
        assert all(isinstance(each, Refusal) for each in heard)
        crowd = [asyncio.create_task(silence.read(Stubborn())) for _ in range(2)]
        await asyncio.sleep(0)
        assert await silence.read(Speaking()) == b"yes", "and all places are there again"
        heard = await asyncio.gather(*crowd, return_exceptions=True)
        assert all(isinstance(each, Refusal) for each in heard)

    run(story())


async def _nothing() -> AsyncIterator[bytes]:
    nobody: tuple[bytes, ...] = ()
    for none in nobody:
        yield none


def test_streams_that_may_ask_for_ever_never_take_all_places() -> None:
    async def story() -> None:
        async with served() as address, grpc.aio.insecure_channel(address) as channel:
            reflect = channel.stream_stream(REFLECT)
            calls = [reflect(never()) for _ in range(MOST_CALLS - 1)]
            hearing = [asyncio.create_task(outcome(call)) for call in calls]
            refused = MOST_CALLS - 1 - MOST_STREAMS
            async with asyncio.timeout(10):
                while sum(task.done() for task in hearing) < refused:
                    await asyncio.sleep(0.01)
            await channel.unary_unary(CHECK)(b"", timeout=10)
            codes = {task.result()[0] for task in hearing if task.done()}
            assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert sum(task.done() for task in hearing) == refused
            for call in calls:
                call.cancel()
            await asyncio.gather(*hearing, return_exceptions=True)

    run(story())
