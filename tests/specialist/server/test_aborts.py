"""A thousand calls that end early, in every possible way, leave nothing behind."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import grpc
import pytest

from octet.client.replica import SpecialistClient, SpecialistError
from octet.clock import SystemClock
from octet.v1 import specialist_pb2 as wire
from specialist.scheduling.sequence import FinishReason, Sequence
from specialist.server.native_replica import create_native_replica
from specialist.server.replica import AssembledReplica
from specialist.server.settings import ReplicaSettings
from tests.specialist.server.harness import (
    QUICK,
    ReceivedAnswer,
    ReplicaHarness,
    ask,
    generate_request,
    run,
    running_replica,
    sim,
)

NUM_ABORTS = 1000
ROUND = 250
CONCURRENCY = 24


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def cancel(served: ReplicaHarness, request: wire.GenerateRequest, rng: Random) -> None:
    """Read a few events, then cancel the call. A full replica may refuse the call instead."""
    stop_after = rng.randrange(6)
    events = served.client.generate(request)
    seen = 0
    try:
        async for _ in events:
            seen += 1
            if seen > stop_after:
                break
    except SpecialistError as error:
        assert not seen and error.code == grpc.StatusCode.RESOURCE_EXHAUSTED, error
    await events.aclose()  # type: ignore[attr-defined]


async def disconnect(served: ReplicaHarness, request: wire.GenerateRequest, rng: Random) -> None:
    """Close the whole connection in the middle of an answer."""
    async with SpecialistClient(served.address) as client:
        call = asyncio.create_task(ask(client, request))
        await asyncio.sleep(rng.random() * 0.02)
    await asyncio.gather(call, return_exceptions=True)


async def run_late(served: ReplicaHarness, request: wire.GenerateRequest, rng: Random) -> None:
    """Let the deadline of the call or of the request pass. The request has a stop string and so might end early; the
    replica therefore does not refuse the deadline as unreachable."""
    request.stop.append("never")
    if rng.random() < 0.5:
        await ask(served.client, request, timeout=0.001 + rng.random() * 0.02)
    else:
        request.timeout_ms = rng.randrange(1, 20)
        await ask(served.client, request)


async def abort(served: ReplicaHarness, rng: Random, turns: asyncio.Semaphore) -> None:
    request = generate_request(
        "shared beginning " * rng.randrange(4) + str(rng.random()),
        max_tokens=rng.randrange(50, 400),
        ignore_eos=True,
        priority=rng.randrange(3),
    )
    async with turns:
        await rng.choice([cancel, disconnect, run_late])(served, request, rng)


async def abort_many(served: ReplicaHarness, rng: Random, count: int) -> None:
    turns = asyncio.Semaphore(CONCURRENCY)
    await asyncio.gather(*(abort(served, rng, turns) for _ in range(count)))


def count_ends(served: ReplicaHarness) -> Counter[str]:
    """Return a counter that counts, by finish reason, the requests that end from now on."""
    ledger, ends = served.replica.scheduler.ledger, Counter[str]()
    finish = ledger.finish

    def counted(seq: Sequence, reason: FinishReason, detail: str = "") -> bool:
        ended = finish(seq, reason, detail)
        ends[reason] += ended
        return ended

    ledger.finish = counted  # type: ignore[method-assign]
    return ends


async def keep_asking(served: ReplicaHarness, request: wire.GenerateRequest, answers: list[ReceivedAnswer]) -> None:
    while True:
        answers.append(await ask(served.client, request))


@pytest.fixture(params=["sim", "native"])
def build(request: pytest.FixtureRequest) -> Callable[[], AssembledReplica]:
    """Return a builder of a replica with few blocks, so that requests wait for and preempt each other."""
    if request.param == "sim":
        return sim(QUICK, num_blocks=96, max_running=16)
    settings = ReplicaSettings(
        name="teller",
        model=request.getfixturevalue("stories_dir"),
        num_blocks=96,
        max_running=16,
        kernel="fused",
        threads=1,
    )
    return lambda: create_native_replica(settings, SystemClock())


def test_a_thousand_aborts_leave_nothing_behind(build: Callable[[], AssembledReplica]) -> None:
    async def scenario() -> None:
        rng = Random(7)
        async with running_replica(build) as served:
            neighbour = generate_request("the neighbour", max_tokens=30, seed=3, ignore_eos=True, priority=1)
            alone = await ask(served.client, neighbour)
            answers: list[ReceivedAnswer] = []
            ends = count_ends(served)
            asking_on = asyncio.create_task(keep_asking(served, neighbour, answers))
            resident = []
            for _ in range(NUM_ABORTS // ROUND):
                await abort_many(served, rng, ROUND)
                gc.collect()
                resident.append(resident_bytes())
            asking_on.cancel()
            await asyncio.gather(asking_on, return_exceptions=True)
            await served.idle()
            served.check_whole()
            assert ends["cancelled"] > NUM_ABORTS // 4, ends
            assert not len(served.server.controller.bookings)
            let_in = [received for received in answers if received.accepted is not None]
            assert let_in and len(alone.tokens) == 30
            assert all(received.tokens == alone.tokens for received in let_in), (
                "an admitted request without a deadline must lose nothing"
            )
            grown = [after - before for before, after in pairwise(resident)]
            assert min(grown) < 2 << 20, f"a leak grows in every round of {ROUND} aborts: {grown} bytes"

    run(scenario(), seconds=120)


async def test_a_thousand_requests_cancelled_before_they_run_leave_nothing_behind() -> None:
    """The requests are cancelled while they are tokenised or queued."""
    async with running_replica(sim(QUICK)) as served, grpc.aio.insecure_channel(served.address) as channel:
        method = channel.unary_stream("/octet.v1.Specialist/Generate", wire.GenerateRequest.SerializeToString)
        for i in range(1000):
            call = method(generate_request(f"{i}", max_tokens=300, ignore_eos=True))
            if i % 3:
                await asyncio.sleep(0)
            call.cancel()
        await served.idle()
        served.check_whole()
