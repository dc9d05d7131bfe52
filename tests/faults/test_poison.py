"""Row 28 of docs/reliability.md: a request that kills its replica kills two, and is then quarantined."""

import asyncio
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import grpc
import pytest

from octet.v1 import error_pb2
from tests.faults.figures import Figure
from tests.faults.poisoned import DIED, POISON, SLOW_POISON
from tests.faults.process import Process, wait_for
from tests.router.http.harness import running_http_router
from tests.router.serving.harness import CallResult, RouterHarness, infer_request, running_router

NUM_REPLICAS = 3
NUM_NEIGHBOURS = 8
NUM_ASKED = 4
QUARANTINED = error_pb2.ERROR_REASON_QUARANTINED


class Replicas:
    """Replicas that restart after they die."""

    def __init__(self, folder: Path) -> None:
        sockets = [folder / f"writer-{number}.sock" for number in range(NUM_REPLICAS)]
        self.places = {"writer": [f"unix:{socket}" for socket in sockets]}
        words = (sys.executable, "-m", "tests.faults.poisoned", *map(str, sockets))
        self.process = Process(words, folder / "replicas.log")
        wait_for(lambda: self.process.output.count("ready on") == NUM_REPLICAS, lambda: self.process.output)

    @property
    def num_deaths(self) -> int:
        assert self.process.is_alive, self.process.output
        return self.process.output.count(DIED)

    async def are_back(self, routed: RouterHarness) -> None:
        await routed.until(lambda: self.process.output.count("ready on") == NUM_REPLICAS + self.num_deaths)
        await routed.until(lambda: all(each.is_usable for each in routed.server.fleet.replicas))


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    made = Replicas(tmp_path_factory.mktemp("poison"))
    yield made
    made.process.end()


async def asked_among(routed: RouterHarness, poison: str, prompts: list[str]) -> tuple[CallResult, list[CallResult]]:
    """Send the poisonous request while other requests fill the batch of every replica. Return the result of the
    poisonous request, and the results of the others."""
    others = [asyncio.create_task(routed.ask(infer_request(each, max_tokens=60, ignore_eos=True))) for each in prompts]
    await routed.until(lambda: routed.num_inflight == len(others) or any(task.done() for task in others))
    received = await routed.ask(infer_request(poison, max_tokens=60, ignore_eos=True))
    return received, await asyncio.gather(*others)


@pytest.mark.parametrize(("poison", "same"), [(POISON, True), (SLOW_POISON, False)])
async def test_28_a_poisonous_request_kills_two_replicas_and_no_third(
    poison: str, same: bool, replicas: Replicas, figure: Figure
) -> None:
    """The other requests are the same in every round if `same` is true, and new ones otherwise."""
    before, numbers = replicas.num_deaths, count()
    async with running_router(replicas.places) as routed:
        reasons: list[int] = []
        others: list[CallResult] = []
        for _ in range(NUM_ASKED):
            prompts = [f"neighbour {number if same else next(numbers)}" for number in range(NUM_NEIGHBOURS)]
            received, neighbours = await asked_among(routed, poison, prompts)
            reasons.append(received.reason)
            others += neighbours
            await replicas.are_back(routed)
        assert reasons[-1] == QUARANTINED and 0 not in reasons, reasons
        num_deaths = replicas.num_deaths - before
        assert num_deaths > 0
        figure(28, f"replicas killed ({poison})", num_deaths, "replicas", "<= 2 replicas")
        wronged = sum(each.reason == QUARANTINED for each in others)
        figure(28, f"other requests quarantined ({poison})", wronged, "requests", "== 0 requests")
        assert {each.reason for each in others} <= {0, error_pb2.ERROR_REASON_REPLICA_LOST}
        last = [await routed.ask(infer_request(f"neighbour {number}")) for number in range(NUM_NEIGHBOURS)]
        assert {each.code for each in last} == {grpc.StatusCode.OK}


async def test_28_over_http_a_quarantined_request_is_a_422_without_retry(replicas: Replicas) -> None:
    before = replicas.num_deaths
    async with running_http_router(replicas.places) as fronted:
        received = await fronted.ask(messages=[{"role": "user", "content": POISON}])
        while received.status == 503:
            await replicas.are_back(fronted.routed)
            received = await fronted.ask(messages=[{"role": "user", "content": POISON}])
        assert (received.status, received.error["code"]) == (422, "quarantined")
        assert received.error["type"] == "invalid_request_error" and "retry-after" not in received.headers
        await replicas.are_back(fronted.routed)
        assert replicas.num_deaths - before == 2
        assert (await fronted.ask(messages=[{"role": "user", "content": "hello"}])).status == 200
