"""How a call of grpc.aio ended: a status CANCELLED, whoever gave it, is raised there as if the task were cancelled."""

import asyncio
from typing import Any

import grpc


async def ending_of(call: Any, raised: BaseException) -> grpc.aio.AioRpcError:
    """The call's own end. Raises CancelledError where the task is being cancelled, and not only the call."""
    if isinstance(raised, grpc.aio.AioRpcError):
        return raised
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        call.cancel()
        raise raised
    code, trailing = await call.code(), await call.trailing_metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing or grpc.aio.Metadata(), await call.details())
