"""Row 26 of docs/reliability.md: another process takes the memory of a replica, then of the router."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from octet.v1 import error_pb2
from tests.faults.callers import LONGEST, PROMPTS, Callers, RouterClient, connected_client, golden_run, until
from tests.faults.cgroups import Cgroup, cgroup
from tests.faults.figures import Figure
from tests.faults.history import Account, History, Question
from tests.faults.process import Process
from tests.faults.site import Host, Plan, Site, site
from tests.faults.verdict import put_verdict

ROOM = 96 << 20
"""Bytes that each process may use in addition to what it uses after its start."""
TAKEN = 0.96
"""Share of the memory limit that is taken."""


@contextmanager
def hogged(group: Cgroup, folder: Path) -> Iterator[None]:
    """Run the block while another process in the cgroup holds most of the cgroup's memory."""
    words = [sys.executable, "-m", "tests.faults.hog", str(TAKEN)]
    hog = Process(words, folder / "hog.log", cgroups=[group.folder])
    try:
        hog.ready()
        yield
    finally:
        hog.kill()


def test_26_new_requests_are_refused_before_a_process_is_killed(long: bool, figure: Figure) -> None:
    async def scenario(site: Site, of_replica: Cgroup, of_router: Cgroup) -> None:
        for group in (of_replica, of_router):
            group.allow_memory(group.memory + ROOM)
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            seconds = 300.0 if long else 0.5
            async with Callers(router, history, Random(26), pause=0.05).calling(4) as callers:
                await callers.answered(10)
                with hogged(of_replica, site.folder):
                    await until(lambda: _turned_away_by(history, "writer-0"))
                    await asyncio.sleep(seconds)
                    await callers.answered(10)
                await until(lambda: _answers(router, history, "writer-0"))
                assert history.failed == [], "the other replica could have answered"
                with hogged(of_router, site.folder):
                    refused = await until(lambda: history.failed)
                    await asyncio.sleep(seconds)
                await callers.answered(10)
            assert {each.reason for each in history.failed} == {error_pb2.ERROR_REASON_QUEUE_FULL}
            assert refused[0].error is not None and refused[0].error.field == "memory"
            assert refused[0].error.retry_after_ms > 0
            await put_verdict(26, router, history, figure)
            killed = of_replica.num_killed + of_router.num_killed
            figure(26, "time under memory pressure", 2 * seconds, "s", ">= 600 s", short=">= 1 s")
            figure(26, "processes killed for lack of memory", killed, "processes", "== 0")
            figure(26, "requests refused, all with a reason", len(history.failed), "requests", "> 0")

    with cgroup("memory") as of_replica, cgroup("memory") as of_router:
        hosts = {"writer-0": Host(cgroups=(of_replica.folder,)), "router": Host(cgroups=(of_router.folder,))}
        with site(Plan({"writer": 2}, hosts=hosts)) as made:
            asyncio.run(scenario(made, of_replica, of_router))


def _turned_away_by(history: History, replica: str) -> list[Account]:
    return [
        each
        for each in history.answered
        if each.receipt and any(one.replica == replica and "memory" in one.message for one in each.receipt.attempts)
    ]


async def _answers(router: RouterClient, history: History, replica: str) -> bool:
    account = await router.ask(Question("writer", PROMPTS[0], LONGEST))
    history.accounts.append(account)
    return account.receipt is not None and account.receipt.replica == replica
