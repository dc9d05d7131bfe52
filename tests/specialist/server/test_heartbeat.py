"""A watcher can distinguish an idle replica from a dead one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from itertools import pairwise
from typing import Any, cast

import grpc
import pytest

from octet.v1 import specialist_pb2 as wire
from tests.patience import PATIENCE
from tests.specialist.server.harness import ReplicaHarness, running_replica


async def reports(served: ReplicaHarness, **fields: int) -> AsyncIterator[wire.LoadReport]:
    """Yield the load reports as they arrive."""
    async with grpc.aio.insecure_channel(served.address) as channel:
        watch = channel.unary_stream(
            "/octet.v1.Specialist/WatchLoad",
            wire.WatchLoadRequest.SerializeToString,
            wire.LoadReport.FromString,
        )
        async for report in watch(wire.WatchLoadRequest(**fields)):
            yield report


@pytest.mark.parametrize("fields", [{"heartbeat_ms": 50}, {"heartbeat_ms": 50, "min_interval_ms": 60_000}])
async def test_idle_replica_sends_heartbeats_at_the_requested_rate(fields: dict[str, int]) -> None:
    async with running_replica() as served:
        stream, times = reports(served, **fields), list[float]()
        while len(times) < 21:
            await anext(stream)
            times.append(asyncio.get_running_loop().time())
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert times[-1] - times[0] >= 0.9 * 20 * 0.05, "no heartbeat may be early"
        assert min(gaps) < 0.5


async def test_without_a_heartbeat_only_changes_are_sent() -> None:
    async with running_replica() as served:
        stream = reports(served, min_interval_ms=0)
        await anext(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cast(Awaitable[Any], anext(stream)), 0.4)


async def test_a_heartbeat_ends_with_the_replica() -> None:
    async with running_replica() as served:
        stream = reports(served, heartbeat_ms=10)
        await anext(stream)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(served.server.stop(600), _to_the_end(stream))


async def _to_the_end(stream: AsyncIterator[wire.LoadReport]) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("value", [-1, 0, 9, 60_001])
async def test_a_heartbeat_out_of_range_is_refused(value: int) -> None:
    async with running_replica() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(reports(served, heartbeat_ms=value))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == f"heartbeat_ms must be in [10, 60,000], got {value}"
        described = {limit.field: limit.limit for limit in (await served.client.describe()).limits}
        assert described["heartbeat_ms"] == "in [10, 60,000]"
