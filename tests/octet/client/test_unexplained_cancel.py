"""Calls that end as CANCELLED without a reason. gRPC ends calls in this way when a router stops."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from octet import AsyncClient, Cancelled, Client, ReplicaLost, Unavailable
from octet.v1 import inference_pb2 as wire
from octet.v1 import jobs_pb2
from tests.octet.cli.jobs.server import done, job, jobs_served
from tests.octet.client.server import ScriptedCall, refuse, scripted
from tests.specialist.server.harness import run

UNSAID = refuse(grpc.StatusCode.CANCELLED)
RUNNING = job(jobs_pb2.JOB_STATUS_RUNNING)
CALLS: dict[str, Callable[[Client], object]] = {
    "stream": lambda client: "".join(chunk.text for chunk in client.stream("x")),
    "infer": lambda client: client.infer("x").text,
    "route": lambda client: client.route("x").specialist,
}


async def _streamed(client: AsyncClient) -> str:
    async with client.stream("x") as answer:
        return "".join([chunk.text async for chunk in answer])


async def _inferred(client: AsyncClient) -> str:
    return (await client.infer("x")).text


async def _routed(client: AsyncClient) -> str:
    return (await client.route("x")).specialist


ASYNC: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {"stream": _streamed, "infer": _inferred, "route": _routed}


def requested(how: str, call: str, address: str, max_retries: int = 2) -> object:
    async def ask() -> object:
        async with AsyncClient(address, max_retries=max_retries) as client:
            return await ASYNC[call](client)

    if how == "async":
        return run(ask())
    with Client(address, max_retries=max_retries) as client:
        return CALLS[call](client)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("call", CALLS)
def test_unexplained_cancel_is_retried(call: str, how: str) -> None:
    with scripted(UNSAID) as script:
        assert requested(how, call, script.address) == ("stl" if call == "route" else "one two three")
        assert len(script.calls) == 2


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("call", CALLS)
def test_unexplained_cancel_without_retries_names_the_server(call: str, how: str) -> None:
    with scripted(UNSAID) as script:
        with pytest.raises(Unavailable, match="ended the call without a reason") as caught:
            requested(how, call, script.address, max_retries=0)
        assert caught.value.code is grpc.StatusCode.CANCELLED and script.address in str(caught.value)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_unexplained_cancel_after_a_chunk_is_not_retried(how: str) -> None:
    with scripted(ScriptedCall(code=grpc.StatusCode.CANCELLED)) as script:
        with pytest.raises(ReplicaLost) as caught:
            requested(how, "stream", script.address)
        assert caught.value.partial == "one two three" and len(script.calls) == 1


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("call", CALLS)
def test_cancel_with_a_reason_is_not_retried(call: str, how: str) -> None:
    with scripted(refuse(grpc.StatusCode.CANCELLED, wire.ERROR_REASON_CANCELLED)) as script:
        with pytest.raises(Cancelled, match=r"^no$"):
            requested(how, call, script.address)
        assert len(script.calls) == 1


@pytest.mark.parametrize("how", ["sync", "async"])
def test_job_watch_continues_after_an_unexplained_cancel(how: str) -> None:
    with jobs_served(RUNNING, "one ", "two", done(), cuts=(1, 3), cut_as=grpc.StatusCode.CANCELLED) as at:

        async def numbers() -> list[int]:
            async with AsyncClient(at.address) as client:
                return [event.number async for event in client.jobs.events("job-1")]

        if how == "async":
            received = run(numbers())
        else:
            with Client(at.address) as client:
                received = [event.number for event in client.jobs.events("job-1")]
        assert received == [1, 2, 3, 4] and [call.after for call in at.calls] == [0, 1, 3]
