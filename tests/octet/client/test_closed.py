"""Clients after close, and streams that are dropped before their end."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from threading import Timer
from typing import Any

import grpc
import pytest

from octet import AsyncClient, Cancelled, Client, Unavailable
from octet.client.jobs import JobWatch
from octet.clock import ManualClock
from octet.v1 import jobs_pb2
from tests.octet.cli.jobs.server import job, jobs_served
from tests.octet.client.server import ScriptedCall, busy, scripted
from tests.patience import PATIENCE

HANGS = ScriptedCall(hangs=True)
RUNNING = job(jobs_pb2.JOB_STATUS_RUNNING)
SYNC: dict[str, Callable[[Client], object]] = {
    "stream": lambda client: list(client.stream("x")),
    "infer": lambda client: client.infer("x"),
    "route": lambda client: client.route("x"),
    "receipt": lambda client: client.receipt("x"),
    "cancel": lambda client: client.cancel("x"),
}


async def read_all(client: AsyncClient) -> list[str]:
    async with client.stream("x") as answer:
        return [chunk.text async for chunk in answer]


ASYNC: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "stream": read_all,
    "infer": lambda client: client.infer("x"),
    "route": lambda client: client.route("x"),
    "receipt": lambda client: client.receipt("x"),
    "cancel": lambda client: client.cancel("x"),
}


@pytest.mark.parametrize("call", SYNC)
def test_calls_of_a_closed_client_fail(call: str) -> None:
    with scripted() as script:
        client = Client(script.address)
        client.infer("x")
        client.close()
        client.close()
        with pytest.raises(Cancelled, match="the client is closed"):
            SYNC[call](client)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("call", ASYNC)
async def test_calls_of_a_closed_async_client_fail(call: str, used: bool) -> None:
    with scripted() as script:
        client = AsyncClient(script.address)
        if used:
            await client.infer("x")
        await client.close()
        await client.close()
        with pytest.raises(Cancelled, match="the client is closed"):
            await ASYNC[call](client)


@pytest.mark.parametrize("call", ASYNC)
async def test_closing_fails_running_calls_without_cancelling_their_tasks(call: str) -> None:
    with scripted(HANGS) as script:
        client = AsyncClient(script.address)
        task = asyncio.ensure_future(ASYNC[call](client))
        assert await asyncio.to_thread(script.live.wait, PATIENCE)
        await client.close()
        with pytest.raises(Cancelled, match="the client is closed"):
            await task
        assert not task.cancelled()
        assert await asyncio.to_thread(script.calls[0].ended.wait, PATIENCE)


@pytest.mark.parametrize("acts", [HANGS, busy(300)], ids=["answering", "waiting to ask again"])
@pytest.mark.parametrize("call", SYNC)
def test_closing_from_another_thread_ends_the_call(call: str, acts: ScriptedCall) -> None:
    with scripted(acts, HANGS) as script:
        client = Client(script.address)
        closer = Timer(0.1, client.close)
        closer.start()
        with pytest.raises(Cancelled):
            SYNC[call](client)
        closer.join()


def test_closing_ends_a_job_watch() -> None:
    with jobs_served(RUNNING) as at:
        client = Client(at.address)
        closer = Timer(0.2, client.close)
        closer.start()
        with pytest.raises(Cancelled, match="the client is closed"):
            list(client.jobs.events("job-1"))
        closer.join()


async def test_closing_ends_an_async_job_watch() -> None:
    async def watch(client: AsyncClient) -> None:
        async for _ in client.jobs.events("job-1"):
            pass

    with jobs_served(RUNNING) as at:
        client = AsyncClient(at.address)
        watching = asyncio.create_task(watch(client))
        assert await asyncio.to_thread(at.hangs.wait, PATIENCE)
        await client.close()
        with pytest.raises(Cancelled, match="the client is closed"):
            await watching
        assert not watching.cancelled()


def test_job_watch_reports_its_own_close_even_with_little_time_left() -> None:
    client = Client("127.0.0.1:1")
    client._clock = ManualClock()  # type: ignore[assignment]
    watching = JobWatch(client, "job-1", 0, 0.01)
    ended = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata())
    with pytest.raises(Unavailable, match="without a reason"):
        watching.fail(ended)
    client.close()
    with pytest.raises(Cancelled, match="the client is closed"):
        watching.fail(ended)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in the loop", "in a thread"])
async def test_dropped_stream_is_cancelled(elsewhere: bool) -> None:
    with scripted(HANGS) as script:
        async with AsyncClient(script.address) as client:
            held = [client.stream("x")]
            assert (await anext(held[0])).text == "one "
            if elsewhere:
                dropping = threading.Thread(target=held.clear)
                dropping.start()
                dropping.join()
            else:
                held.clear()
            gc.collect()
            assert await asyncio.to_thread(script.calls[0].ended.wait, PATIENCE)
