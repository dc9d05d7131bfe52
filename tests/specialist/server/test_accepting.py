"""Which requests are accepted during the warm-up, during a drain, during a long step, and with many watchers."""

import asyncio
from pathlib import Path
from threading import Event

import grpc
import pytest

from octet.client.replica import SpecialistClient
from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim.engine import InjectedFault
from specialist.scheduling.step import Step
from specialist.server.preparation import RequestPreparer
from specialist.server.server import ReplicaServer
from specialist.server.settings import ServiceSettings
from tests.patience import PATIENCE
from tests.specialist.server.harness import (
    QUICK,
    ReceivedAnswer,
    adapter_directory,
    ask,
    expected,
    generate_request,
    running_replica,
    sim,
)
from tests.specialist.server.test_operate import NOT_SERVING, SERVING, health_of, refused

GUILTY = "p" * 13


def reason_of(received: ReceivedAnswer) -> wire.ErrorReason:
    assert received.error is not None and received.error.error is not None, received
    return received.error.error.reason


async def test_a_drain_during_the_warm_up_is_not_lost() -> None:
    replica = sim()()
    server = ReplicaServer(replica, ServiceSettings(port=0))
    loop, drained = asyncio.get_running_loop(), list[int]()
    words_warm_up = replica.codec.warm_up

    async def drain() -> int:
        async with SpecialistClient(f"127.0.0.1:{server.port}") as client:
            return await client.drain()

    def warm_up() -> None:
        drained.append(asyncio.run_coroutine_threadsafe(drain(), loop).result(PATIENCE))
        words_warm_up()

    replica.codec.warm_up = warm_up  # type: ignore[method-assign]
    await server.start()
    assert drained == [0]
    assert await health_of(server.port) == await health_of(server.port, "") == NOT_SERVING
    async with SpecialistClient(f"127.0.0.1:{server.port}") as client:
        late = await ask(client, generate_request())
    assert late.accepted is None and reason_of(late) == wire.ERROR_REASON_DRAINING
    await server.stop(0)


LONG = "l" * (RequestPreparer.SHORT + 1)
"""A prompt long enough to be tokenised on its own thread."""


@pytest.mark.parametrize("closing", ["drain", "crowd"])
async def test_request_is_refused_if_serving_ends_while_it_is_tokenised(closing: str, tmp_path: Path) -> None:
    adapter_directory(tmp_path, "style")
    async with running_replica(sim(QUICK, max_running=1), max_waiting=1, adapter_root=tmp_path) as served:
        await served.client.load_adapter("style", "style")
        tokenising, go_on = Event(), Event()
        prompt = served.replica.codec.encode

        def slow(text: str) -> tuple[int, ...]:
            if text == LONG:
                tokenising.set()
                go_on.wait(PATIENCE)
            return prompt(text[: len(GUILTY)])

        served.replica.codec.encode = slow  # type: ignore[method-assign]
        asked = asyncio.create_task(ask(served.client, generate_request(LONG, adapters=["style"])))
        await asyncio.to_thread(tokenising.wait, PATIENCE)
        others: list[asyncio.Task[ReceivedAnswer]] = []
        if closing == "drain":
            await served.client.drain()
        else:
            for i in range(2):  # The prompts are sent one after another: at most two are tokenised at a time.
                request = generate_request(f"{i}", max_tokens=400, ignore_eos=True)
                others.append(asyncio.create_task(ask(served.client, request)))
                while served.server.handler.num_live <= i:
                    await asyncio.sleep(0.001)
        go_on.set()
        received = await asked
        assert received.accepted is None
        closed = wire.ERROR_REASON_DRAINING if closing == "drain" else wire.ERROR_REASON_QUEUE_FULL
        assert reason_of(received) == closed
        assert served.replica.adapters.num_in_use == 0
        await asyncio.gather(*others)


async def test_a_verdict_does_not_wait_for_the_next_step() -> None:
    go_on = Event()

    def faults(step: Step) -> InjectedFault | None:
        if any(len(row.sequence.request.prompt) == len(GUILTY) for row in step.rows):
            go_on.wait(PATIENCE)
        return None

    async with running_replica(sim(faults=faults)) as served:
        events = served.client.generate(generate_request(GUILTY))
        try:
            first = await asyncio.wait_for(anext(events), PATIENCE / 2)
        finally:
            go_on.set()
        assert first.HasField("accepted")
        async for event in events:
            last = event
        assert last.HasField("usage")


async def test_watchers_are_limited_and_block_no_request() -> None:
    most = 64
    async with (
        running_replica(sim(QUICK, max_running=1), max_waiting=1, max_watchers=most) as served,
        SpecialistClient(served.address) as watcher,
    ):
        watches = [watcher.watch_load(min_interval_ms=60_000) for _ in range(most)]
        await asyncio.gather(*(anext(watch) for watch in watches))
        error = await refused(anext(served.client.watch_load()))
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and error.error is not None
        assert (error.error.field, error.error.limit) == ("watching", f"at most {most} requests")
        request = generate_request(max_tokens=300, ignore_eos=True)
        running = [asyncio.create_task(ask(served.client, request)) for _ in range(2)]
        while served.server.handler.num_live < 2:
            await asyncio.sleep(0.001)
        assert await health_of(served.server.port) == SERVING
        for task in running:
            assert (await task).tokens == expected(served.replica, request)
        await watches.pop().aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE):
            while len(served.server.publisher.watchers) == most:
                await asyncio.sleep(0.005)
        await anext(served.client.watch_load())
