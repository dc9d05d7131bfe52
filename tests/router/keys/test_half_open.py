"""The router limits the number of open calls that have not sent their request yet or that count against no key."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from router.api.keys import gate
from router.api.keys.gate import MAX_UNCOUNTED_CALLS
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness
from tests.router.keys.keyed import issue_key, running_keyed_router
from tests.router.serving.harness import infer_request

ANN = issue_key("ann")
NARROW = issue_key("narrow", concurrency=1)
MANY = 3 * MAX_UNCOUNTED_CALLS


async def never() -> AsyncIterator[bytes]:
    await asyncio.get_running_loop().create_future()
    yield b""


async def left_open(fronted: HttpHarness, calls: list[Any], least: int) -> int:
    """Wait until at most `least` calls are open and the router has answered later requests on the same connection.
    Return the number of open calls."""
    await fronted.routed.until(lambda: sum(not call.done() for call in calls) <= least)
    for _ in range(3):
        assert (await fronted.routed.ask(infer_request(), metadata=ANN.metadata)).code is grpc.StatusCode.OK
    return sum(not call.done() for call in calls)


async def test_uncounted_calls_are_bounded() -> None:
    async with running_keyed_router([ANN]) as fronted:
        channel = fronted.routed.channel
        watch = health_pb2_grpc.HealthStub(channel).Watch
        watching = [watch(health_pb2.HealthCheckRequest()) for _ in range(MANY)]
        received = await asyncio.gather(*(call.read() for call in watching), return_exceptions=True)
        refused = [each for each in received if isinstance(each, aio.AioRpcError)]
        assert len(refused) == MANY - MAX_UNCOUNTED_CALLS
        assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        half_open = channel.stream_unary("/grpc.health.v1.Health/Check")
        checking = [half_open(never()) for _ in range(MANY)]
        assert await left_open(fronted, checking, MAX_UNCOUNTED_CALLS) == MAX_UNCOUNTED_CALLS
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        reflecting = [reflect(never(), metadata=ANN.metadata) for _ in range(MANY)]
        assert await left_open(fronted, reflecting, MAX_UNCOUNTED_CALLS) == MAX_UNCOUNTED_CALLS
        for call in (*watching, *checking, *reflecting):
            call.cancel()
        async with asyncio.timeout(PATIENCE):
            while not await is_answered(watch(health_pb2.HealthCheckRequest())):
                await asyncio.sleep(0.05)


async def is_answered(call: Any) -> bool:
    try:
        return bool((await call.read()).status)
    except aio.AioRpcError:
        return False


async def test_call_counts_before_its_request_arrives_and_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "READ_SECONDS", 5.0)
    async with running_keyed_router([NARROW]) as fronted:
        half_open = fronted.routed.channel.stream_unary("/octet.v1.Inference/Infer")
        calls = [half_open(never(), metadata=NARROW.metadata) for _ in range(8)]
        codes = [await call.code() for call in calls]
        assert sorted(code.name for code in codes) == ["DEADLINE_EXCEEDED"] + ["RESOURCE_EXHAUSTED"] * 7
        assert (await fronted.routed.ask(infer_request(), metadata=NARROW.metadata)).code is grpc.StatusCode.OK


async def test_call_without_a_request_is_refused() -> None:
    messages: tuple[bytes, ...] = ()

    async def nothing() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    async with running_keyed_router([ANN]) as fronted:
        call = fronted.routed.channel.stream_unary("/octet.v1.Inference/Infer")(nothing(), metadata=ANN.metadata)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
