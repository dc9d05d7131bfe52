"""Calls that gRPC has read from their connection but not yet handed to the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tests.patience import PATIENCE

NUM_CALLS = 32
_STALL_SECONDS = 0.4
Ask = Callable[[], Any]


@asynccontextmanager
async def connected(address: str, method: str, request: bytes) -> AsyncIterator[Ask]:
    """Yield a function that sends a call over an open connection to a server in this event loop."""
    with grpc.insecure_channel(address) as channel:
        method_of = channel.unary_unary(method)

        def ask() -> Any:
            return method_of.future(request, timeout=PATIENCE)

        await asyncio.to_thread(ask().code)
        yield ask


def send_pending_calls(ask: Ask) -> list[Any]:
    """Send calls, block the event loop while gRPC reads them, and return the calls."""
    calls = [ask() for _ in range(NUM_CALLS)]
    time.sleep(_STALL_SECONDS)
    return calls


async def codes_of(calls: list[Any]) -> set[grpc.StatusCode]:
    return {await asyncio.to_thread(call.code) for call in calls}


async def details_of(calls: list[Any]) -> set[str]:
    return {await asyncio.to_thread(call.details) for call in calls}
