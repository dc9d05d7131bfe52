"""A router with HTTP and replicas that serve, refuse, stall or die on demand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

from octet.rpc.refusal import Refusal, queue_full
from octet.v1 import error_pb2
from octet.v1.specialist_pb2 import Chunk, GenerateRequest
from tests.patience import PATIENCE
from tests.router.http.harness import SLOW, HttpHarness, answer_with, running_http_router
from tests.router.serving.spy import Behaviour, answer, running_spy
from tests.specialist.server.harness import QUICK, running_replica, sim

REFUSALS = 2
"""Number of refusals by `busy` before each of its answers."""
AFTER = 0.08
"""Seconds that `busy` and `full` send as retry-after."""

_LOST = Refusal(error_pb2.ERROR_REASON_REPLICA_FAILED, "the replica has failed", code=grpc.StatusCode.UNAVAILABLE)


@asynccontextmanager
async def running_router() -> AsyncIterator[HttpHarness]:
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(running_replica(sim(QUICK, context=1024)))
        slow = await stack.enter_async_context(running_replica(sim(SLOW, name="slow")))
        spies = {
            "busy": _busy(REFUSALS),
            "full": _busy(1 << 30),
            "late": answer_with(Chunk(text="so far", token_ids=[1]), seconds=60),
            "lost": answer_with(Chunk(text="so far", token_ids=[1]), fails=_LOST),
        }
        replicas = {"writer": [writer.address], "slow": [slow.address]}
        for name, behave in spies.items():
            replicas[name] = [(await stack.enter_async_context(running_spy(behave))).address]
        fronted = await stack.enter_async_context(running_http_router(replicas))
        yield fronted
        async with asyncio.timeout(PATIENCE):
            await fronted.routed.idle()
            await writer.idle()
            await slow.idle()
        writer.check_whole()
        slow.check_whole()


def _busy(refusals: int) -> Behaviour:
    requested = 0

    async def behave(request: GenerateRequest, context: Any) -> None:
        nonlocal requested
        requested += 1
        if requested % (refusals + 1):
            raise queue_full("waiting", 1, AFTER)
        await answer(request, context)

    return behave
