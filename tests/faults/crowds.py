"""Somebody who means no harm, beside those who do: how long an answer takes, and what it costs."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.slow_periods import cpu_seconds
from tests.faults.callers import Line, line
from tests.faults.history import Question
from tests.faults.hostile import scraped
from tests.faults.process import PATIENCE
from tests.faults.site import Site

ASKED = Question("writer", "somebody who means no harm", 8)


async def p99(router: Line, number: int) -> float:
    """Seconds until the whole answer, one after the other."""
    seconds = []
    for _ in range(number):
        account = await router.ask(ASKED)
        assert account.is_answered, account
        seconds.append((account.ended or 0.0) - account.began)
    return sorted(seconds)[int(len(seconds) * 0.99) - 1]


async def held_open(port: int, sent: bytes, opened: Callable[[], None]) -> float:
    """How long the other side stands it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    began = time.monotonic()
    opened()
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
    finally:
        writer.close()
    return time.monotonic() - began


async def flood(address: str, kind: str, number: int) -> dict[str, Any]:
    """From a process of its own; who is let go has enough. It takes no processor from those it means to harm, as if it
    were on another machine."""
    words = ("nice", "-n", "19", sys.executable, "-m", "tests.faults.flood", address, kind, str(number))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    told: dict[str, Any] = json.loads(said)
    assert process.returncode == 0
    return told


@asynccontextmanager
async def asking_all_the_time(site: Site) -> AsyncIterator[list[float]]:
    """Seconds that each of somebody's requests took; all of them are answered."""
    seconds: list[float] = []
    over = asyncio.Event()

    async def ask() -> None:
        async with line(site.address) as router:
            while not over.is_set():
                account = await router.ask(ASKED)
                assert account.is_answered, account
                seconds.append((account.ended or 0.0) - account.began)

    asking = asyncio.create_task(ask())
    try:
        yield seconds
    finally:
        over.set()
        await asking


async def most_at_once(site: Site, over: asyncio.Event) -> float:
    """Requests being answered, of those that may be."""
    most = 0.0
    while not over.is_set():
        page = await scraped(site)
        most = max(most, page["octet_inflight_requests"] / page["octet_inflight_requests_limit"])
        await asyncio.sleep(0.05)
    return most


@dataclass(frozen=True, slots=True)
class Cost:
    """Of what one who means no harm asks for, one after the other."""

    waits: Sequence[float]
    """Seconds to the end of each answer."""
    seconds: float
    of_router: float
    """Seconds of CPU, in all."""
    of_replica: float

    def replica_per_answer(self, idle: float) -> float:
        """Seconds of CPU, less what it takes where nobody asks: `idle` seconds in each."""
        return (self.of_replica - idle * self.seconds) / len(self.waits)

    @property
    def usual_wait(self) -> float:
        return median(self.waits)


async def cost(site: Site, over: Awaitable[object]) -> Cost:
    """Until then."""
    pids = site.router.pid, site.replicas[0].process.pid
    began, (router, replica) = time.monotonic(), map(cpu_seconds, pids)
    async with asking_all_the_time(site) as answered:
        await over
    assert answered
    return Cost(answered, time.monotonic() - began, cpu_seconds(pids[0]) - router, cpu_seconds(pids[1]) - replica)


async def idle_replica(site: Site, seconds: float) -> float:
    """What a second costs it where nobody asks."""
    pid = site.replicas[0].process.pid
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds
