"""How a call of grpc.aio ended. One that is cancelled here, and not the task that waits for it, is raised there as if
the task were."""

import asyncio
from typing import Any

import grpc


def ending_of(call: Any, raised: BaseException) -> grpc.aio.AioRpcError:
    """Raises CancelledError where the task is being cancelled, and not only the call."""
    if isinstance(raised, grpc.aio.AioRpcError):
        return raised
    call.cancel()
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        raise raised
    return grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata())
