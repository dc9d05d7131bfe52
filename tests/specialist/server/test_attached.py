"""Requests on an attached call, over a real socket: the same answers and errors as calls of their own."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc import aio

from octet.client.attached import ATTACH
from octet.client.replica import SpecialistClient
from octet.rpc.handlers import streaming_handler
from octet.v1 import specialist_pb2 as wire
from specialist.server.server import MAX_ATTACHMENTS
from specialist.server.service import SERVICE_NAME
from tests.patience import PATIENCE
from tests.specialist.server.harness import (
    QUICK,
    ReplicaHarness,
    ask,
    expected,
    generate_request,
    long_answer,
    running_replica,
    sim,
    until,
)


@asynccontextmanager
async def attached(served: ReplicaHarness) -> AsyncIterator[SpecialistClient]:
    async with SpecialistClient(served.address, attach=True) as client:
        await client.wait_attached()
        yield client


async def flushed(served: ReplicaHarness) -> None:
    await served.idle()
    await until(lambda: not served.server.handler.num_open)
    served.check_whole()


async def test_answers_and_errors_are_those_of_single_calls() -> None:
    requests = [long_answer(40, text=f"prompt {i}", seed=i) for i in range(20)]
    requests += [generate_request(max_tokens=-1), generate_request(adapters=["unknown"]), generate_request("")]
    async with running_replica(sim(QUICK)) as served, attached(served) as client:
        single = await asyncio.gather(*(ask(served.client, each) for each in requests))
        shared = await asyncio.gather(*(ask(client, each) for each in requests))
        assert len(served.server.attachments) == 1
        page = (await served.server.exposition.write("")).body.decode()
        assert re.search(r"^octet_replica_attached_calls\{.*\} 1\.0$", page, re.MULTILINE)
        for one, other, request in zip(single, shared, requests, strict=True):
            assert one.tokens == other.tokens and one.text == other.text
            if one.error is None:
                assert other.usage is not None and other.tokens == expected(served.replica, request)
            else:
                assert other.error is not None and other.error.code is one.error.code
                assert other.error.error == one.error.error and str(other.error) == str(one.error)
        await flushed(served)


@pytest.mark.parametrize("num_events", [0, 1, 2, 5])
async def test_a_cancelled_request_ends_alone(num_events: int) -> None:
    async with running_replica(sim(QUICK), piece_gap=0.0) as served, attached(served) as client:
        kept = asyncio.create_task(ask(client, long_answer(200, text="kept")))
        left = client.generate(long_answer(400, text="left"))
        for _ in range(num_events):
            await anext(left)
        await left.aclose()  # type: ignore[attr-defined]
        answer = await kept
        assert len(answer.tokens) == 200 and answer.error is None
        await flushed(served)


async def test_a_lost_connection_cancels_its_requests() -> None:
    async with running_replica(sim(QUICK)) as served:
        async with attached(served) as client:
            tasks = [asyncio.create_task(ask(client, long_answer(480, text=f"prompt {i}"))) for i in range(8)]
            await until(lambda: served.server.handler.num_live == 8)
        ended = await asyncio.gather(*tasks)
        assert all(each.error is not None and each.error.code is grpc.StatusCode.CANCELLED for each in ended)
        await flushed(served)
        await until(lambda: not served.server.attachments)


async def test_a_draining_replica_refuses_further_requests_and_finishes_the_others() -> None:
    async with running_replica(sim(QUICK)) as served, attached(served) as client:
        first = asyncio.create_task(ask(client, long_answer(400)))
        await until(lambda: served.server.handler.num_live)
        draining = asyncio.create_task(served.client.drain())
        await until(lambda: served.server.handler.state == "draining")
        late = await ask(client, long_answer(8))
        assert late.error is not None and late.error.error is not None
        assert late.error.error.reason == wire.ERROR_REASON_DRAINING
        answer = await first
        assert len(answer.tokens) == 400 and await draining == 1
        await flushed(served)


async def test_a_stopping_replica_ends_the_attached_call_after_its_answers() -> None:
    async with running_replica(sim(QUICK)) as served, attached(served) as client:
        first = asyncio.create_task(ask(client, long_answer(400)))
        await until(lambda: served.server.handler.num_live)
        await served.server.stop(PATIENCE)
        answer = await first
        assert len(answer.tokens) == 400 and answer.usage is not None
        assert not served.server.attachments


async def test_a_request_above_the_limit_of_shared_ones_is_a_call_of_its_own() -> None:
    async with running_replica() as served, attached(served) as client:
        assert (await ask(client, generate_request())).error is None
        large = generate_request("x" * (3 << 19))
        answer, single = await ask(client, large), await ask(served.client, large)
        assert answer.error is not None and single.error is not None and str(answer.error) == str(single.error)


async def test_more_attached_calls_than_fit_are_refused_and_their_requests_served() -> None:
    async with running_replica() as served:
        async with aio.insecure_channel(served.address) as channel:
            calls = [channel.stream_stream(ATTACH)() for _ in range(MAX_ATTACHMENTS)]
            for call in calls:
                assert wire.AttachResponse.FromString(await call.read()).HasField("hello")
            async with attached(served) as client:
                assert (await ask(client, generate_request())).error is None
            assert len(served.server.attachments) == MAX_ATTACHMENTS
            for call in calls:
                call.cancel()
        await until(lambda: not served.server.attachments)


async def test_an_older_replica_gets_a_call_for_each_request(caplog: pytest.LogCaptureFixture) -> None:
    async def generate(request: wire.GenerateRequest, context: grpc.aio.ServicerContext) -> None:
        await context.write(wire.GenerateEvent(chunk=wire.Chunk(text=request.text)))

    server = aio.server()
    handler = streaming_handler(wire.GenerateRequest, wire.GenerateEvent, generate, 1 << 20)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, {"Generate": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with SpecialistClient(f"127.0.0.1:{port}", attach=True) as client:
            for text in ("one", "two"):
                assert [event.chunk.text async for event in client.generate(generate_request(text))] == [text]
    finally:
        await server.stop(0)
    assert caplog.text.count("attaches no call, so each request to it is a call of its own: UNIMPLEMENTED") == 1
