"""Calls that bring no request, and streams that no key's limits count, take nothing from anybody for long."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from octet.rpc.unread import MOST_SILENT
from router.keys import interceptor
from tests.router.keys.keyed import keyed, made
from tests.router.service.harness import asking
from tests.service.harness import run

ANN = made("ann")
NARROW = made("narrow", concurrency=1)
MANY = 3 * interceptor.MOST_UNCOUNTED


async def never() -> AsyncIterator[bytes]:
    await asyncio.get_running_loop().create_future()
    yield b""


async def left_open(calls: list[Any], least: int) -> int:
    """When so few are left, or after ten seconds."""
    for _ in range(100):
        await asyncio.sleep(0.1)
        if sum(not call.done() for call in calls) <= least:
            break
    await asyncio.sleep(0.3)
    return sum(not call.done() for call in calls)


def test_calls_that_no_limit_counts_are_bounded() -> None:
    async def story() -> None:
        async with keyed([ANN]) as fronted:
            channel = fronted.routed.channel
            watch = health_pb2_grpc.HealthStub(channel).Watch
            watching = [watch(health_pb2.HealthCheckRequest()) for _ in range(MANY)]
            heard = await asyncio.gather(*(call.read() for call in watching), return_exceptions=True)
            refused = [each for each in heard if isinstance(each, aio.AioRpcError)]
            assert len(refused) == MANY - interceptor.MOST_UNCOUNTED
            assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            half_open = channel.stream_unary("/grpc.health.v1.Health/Check")
            checking = [half_open(never()) for _ in range(MANY)]
            assert await left_open(checking, interceptor.MOST_UNCOUNTED) == interceptor.MOST_UNCOUNTED
            reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
            reflecting = [reflect(never(), metadata=ANN.metadata) for _ in range(MANY)]
            assert await left_open(reflecting, interceptor.MOST_UNCOUNTED) == interceptor.MOST_UNCOUNTED
            assert (await fronted.routed.ask(asking(), metadata=ANN.metadata)).code is grpc.StatusCode.OK
            for call in (*watching, *checking, *reflecting):
                call.cancel()
            await asyncio.sleep(0.2)
            assert (await watch(health_pb2.HealthCheckRequest()).read()).status

    run(story())


def test_a_call_counts_before_its_request_has_come_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor.KeyInterceptor.__init__, "__defaults__", (0.5, MOST_SILENT))

    async def story() -> None:
        async with keyed([NARROW]) as fronted:
            half_open = fronted.routed.channel.stream_unary("/octet.v1.Inference/Infer")
            calls = [half_open(never(), metadata=NARROW.metadata) for _ in range(8)]
            codes = [await call.code() for call in calls]
            assert sorted(code.name for code in codes) == ["DEADLINE_EXCEEDED"] + ["RESOURCE_EXHAUSTED"] * 7
            assert (await fronted.routed.ask(asking(), metadata=NARROW.metadata)).code is grpc.StatusCode.OK

    run(story())


def test_a_call_that_ends_without_a_request_is_told_so() -> None:
    nobody: tuple[bytes, ...] = ()

    async def nothing() -> AsyncIterator[bytes]:
        for none in nobody:
            yield none

    async def story() -> None:
        async with keyed([ANN]) as fronted:
            call = fronted.routed.channel.stream_unary("/octet.v1.Inference/Infer")(nothing(), metadata=ANN.metadata)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(story())
