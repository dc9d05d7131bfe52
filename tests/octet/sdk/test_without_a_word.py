"""Calls that end as CANCELLED and without a reason, as gRPC ends them at a router that stops: nobody cancelled them."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from octet import AsyncClient, Cancelled, Client, ReplicaLost, Unavailable
from octet.v1 import inference_pb2 as wire
from octet.v1 import jobs_pb2
from tests.octet.jobs.server import done, job, jobs_served
from tests.octet.sdk.server import Act, refuse, scripted
from tests.service.harness import run

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


def asked(how: str, call: str, address: str, max_retries: int = 2) -> object:
    async def ask() -> object:
        async with AsyncClient(address, max_retries=max_retries) as client:
            return await ASYNC[call](client)

    if how == "async":
        return run(ask())
    with Client(address, max_retries=max_retries) as client:
        return CALLS[call](client)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("call", CALLS)
def test_it_is_asked_again(call: str, how: str) -> None:
    with scripted(UNSAID) as script:
        assert asked(how, call, script.address) == ("stl" if call == "route" else "one two three")
        assert len(script.calls) == 2


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("call", CALLS)
def test_where_it_is_not_the_error_says_who_ended_it(call: str, how: str) -> None:
    with scripted(UNSAID) as script:
        with pytest.raises(Unavailable, match="ended the call without a word") as caught:
            asked(how, call, script.address, max_retries=0)
        assert caught.value.code is grpc.StatusCode.CANCELLED and script.address in str(caught.value)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_answer_that_has_begun_is_not_begun_again(how: str) -> None:
    with scripted(Act(code=grpc.StatusCode.CANCELLED)) as script:
        with pytest.raises(ReplicaLost) as caught:
            asked(how, "stream", script.address)
        assert caught.value.partial == "one two three" and len(script.calls) == 1


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("call", CALLS)
def test_who_is_cancelled_with_a_reason_is_not_asked_for_again(call: str, how: str) -> None:
    with scripted(refuse(grpc.StatusCode.CANCELLED, wire.ERROR_REASON_CANCELLED)) as script:
        with pytest.raises(Cancelled, match=r"^no$"):
            asked(how, call, script.address)
        assert len(script.calls) == 1


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_job_is_watched_on(how: str) -> None:
    with jobs_served(RUNNING, "one ", "two", done(), cuts=(1, 3), cut_as=grpc.StatusCode.CANCELLED) as at:

        async def numbers() -> list[int]:
            async with AsyncClient(at.address) as client:
                return [event.number async for event in client.jobs.events("job-1")]

        if how == "async":
            heard = run(numbers())
        else:
            with Client(at.address) as client:
                heard = [event.number for event in client.jobs.events("job-1")]
        assert heard == [1, 2, 3, 4] and [call.after for call in at.calls] == [0, 1, 3]
