"""Row 8 of docs/reliability.md: a thousand callers leave mid-stream. They cancel, are killed, close one half of the
connection, or never read."""

import asyncio
import re
import sys
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

from octet.v1 import error_pb2
from tests.faults.callers import LONGEST, PROMPTS, RouterClient, connected_client, golden_run, until
from tests.faults.figures import Figure
from tests.faults.history import History, Question
from tests.faults.http_leaver import dial, half_close, is_answered, slam
from tests.faults.process import Process
from tests.faults.site import Plan, Site, site
from tests.faults.verdict import put_verdict

STALL = "dispatch: {stall_seconds: 3s}\n"
LONG_ANSWER = 3000
"""Tokens of a long answer: many more than the kernel and gRPC buffer for a caller that does not read."""


@pytest.mark.slow
def test_8_a_thousand_callers_leave_and_nothing_leaks(long: bool, figure: Figure) -> None:
    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            history = History(await golden_run(router, site.specialists))
            assert await is_answered(site.http)
            random = Random(8)
            await _gone(site, router, history, random, 100)
            sizes = _sizes(site)
            number = 1000 if long else 150
            await _gone(site, router, history, random, number)
            await _killed(site, 10 if long else 1)
            seconds = await _cut(site, router)
            await put_verdict(8, router, history, figure)
            figure(8, "callers that left", number, "callers", ">= 1000", short="> 0")
            figure(8, "time until a caller that never reads was cut off", seconds, "s", "< 30 s", short="< 120 s")
            grown = max(after - before for before, after in zip(sizes, _sizes(site), strict=True))
            figure(8, "memory growth", grown / 2**20, "MiB", "< 32 MiB", short="< 64")

    with site(Plan({"writer": 2}, STALL)) as made:
        asyncio.run(scenario(made))


async def _gone(site: Site, router: RouterClient, history: History, random: Random, number: int) -> None:
    """Run callers that leave mid-stream, sixteen at a time."""
    turns = asyncio.Semaphore(16)

    async def one() -> None:
        seconds = random.uniform(0.0, 0.3)
        question = Question("writer", random.choice(PROMPTS), LONGEST)
        async with turns:
            match random.choice(("cancel", "cancel", "slam", "half")):
                case "cancel":
                    history.accounts.append(await router.ask(question, leave_after=seconds))
                case "slam":
                    await slam(site.http, seconds)
                case "half":
                    await half_close(site.http, seconds)

    await asyncio.gather(*(one() for _ in range(number)))


async def _killed(site: Site, number: int) -> None:
    """Start caller processes with ten streams each, and kill them."""
    for index in range(number):
        words = [sys.executable, "-m", "tests.faults.leaver", site.address, "10"]
        leaver = Process(words, site.folder / f"leaver-{index}.log")
        await asyncio.to_thread(leaver.ready)
        await asyncio.sleep(0.05)
        leaver.kill()


async def _cut(site: Site, router: RouterClient) -> float:
    """Return the seconds until the router ends the requests of callers that stay connected but never read."""
    began = time.monotonic()
    silent = [await dial(site.http, LONG_ANSWER, window=2048) for _ in range(2)]
    unread = [router.unread(Question("writer", PROMPTS[0], LONG_ANSWER)) for _ in range(2)]
    await until(lambda: _num_running(router, 4))
    await until(lambda: _num_running(router, 0))
    seconds = time.monotonic() - began
    for name, call in unread:
        await until(partial(_has_receipt, router, name))  # A replica may give up before the router does.
        receipt = await router.receipt(name)
        assert receipt is not None and receipt.error.reason == error_pb2.ERROR_REASON_CALLER_STALLED
        call.cancel()
    for each in silent:
        each.close()
    return seconds


async def _has_receipt(router: RouterClient, request_id: str) -> bool:
    return await router.receipt(request_id) is not None


async def _num_running(router: RouterClient, number: int) -> bool:
    infos = await router.replicas()
    return sum(info.running + info.waiting for info in infos) == number


def _sizes(site: Site) -> list[int]:
    """Return the resident bytes of the router and of each replica."""
    pids = [site.router.pid, *(each.process.pid for each in site.replicas)]
    return [_resident(pid) for pid in pids]


def _resident(pid: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) * 1024
