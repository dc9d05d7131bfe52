"""A router with an HTTP door, before replicas that serve, refuse, stall and die when asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

from octet.rpc.refusal import Refusal, queue_full
from octet.v1 import error_pb2
from octet.v1.specialist_pb2 import Chunk, GenerateRequest
from tests.router.http.harness import SLOW, Fronted, fronting, saying
from tests.router.service.spy import Behaviour, answer, spying
from tests.service.harness import QUICK, serving, sim

REFUSALS = 2
"""Of `busy`, before every answer."""
AFTER = 0.08
"""Seconds: when `busy` and `full` say to come back."""

_LOST = Refusal(grpc.StatusCode.UNAVAILABLE, error_pb2.ERROR_REASON_REPLICA_FAILED, "it cannot serve any more")


@asynccontextmanager
async def world() -> AsyncIterator[Fronted]:
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(serving(sim(QUICK, context=1024)))
        slow = await stack.enter_async_context(serving(sim(SLOW, name="slow")))
        spies = {
            "busy": _busy(REFUSALS),
            "full": _busy(1 << 30),
            "late": saying(Chunk(text="so far", token_ids=[1]), seconds=60),
            "lost": saying(Chunk(text="so far", token_ids=[1]), fails=_LOST),
        }
        replicas = {"writer": [writer.address], "slow": [slow.address]}
        for name, behave in spies.items():
            replicas[name] = [(await stack.enter_async_context(spying(behave))).address]
        fronted = await stack.enter_async_context(fronting(replicas))
        yield fronted
        async with asyncio.timeout(20):
            await fronted.routed.idle()
            await writer.idle()
            await slow.idle()
        writer.check_whole()
        slow.check_whole()


def _busy(refusals: int) -> Behaviour:
    asked = 0

    async def behave(request: GenerateRequest, context: Any) -> None:
        nonlocal asked
        asked += 1
        if asked % (refusals + 1):
            raise queue_full("waiting", 1, AFTER)
        await answer(request, context)

    return behave
