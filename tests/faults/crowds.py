"""Latency and CPU cost of well-behaved requests in the presence of hostile callers."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.processes import cpu_seconds
from tests.faults.callers import RouterClient, connected_client
from tests.faults.history import Question
from tests.faults.hostile import scraped
from tests.faults.site import Site
from tests.patience import PATIENCE

ASKED = Question("writer", "a harmless request", 8)


async def p99(router: RouterClient, number: int) -> float:
    """Return the 99th percentile of the time to a complete answer, in seconds. The requests run one after another."""
    seconds = []
    for _ in range(number):
        account = await router.ask(ASKED)
        assert account.is_answered, account
        seconds.append((account.ended or 0.0) - account.began)
    return sorted(seconds)[int(len(seconds) * 0.99) - 1]


async def held_open(port: int, sent: bytes, opened: Callable[[], None]) -> float:
    """Open a connection, send the bytes, and return how many seconds the server keeps the connection open."""
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
    """Run a hostile caller in its own process and return what it observed. Its low CPU priority leaves the
    CPU to the servers, as if it ran on another machine."""
    words = ("nice", "-n", "19", sys.executable, "-m", "tests.faults.flood", address, kind, str(number))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    ended: dict[str, Any] = json.loads(output)
    assert process.returncode == 0
    return ended


@asynccontextmanager
async def steady_requests(site: Site) -> AsyncIterator[list[float]]:
    """Send well-behaved requests, all of which must be answered. Yield a growing list of the seconds that each took."""
    seconds: list[float] = []
    over = asyncio.Event()

    async def ask() -> None:
        async with connected_client(site.address) as router:
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


async def peak_concurrency(site: Site, over: asyncio.Event) -> float:
    """Return the largest share of the in-flight limit that requests used before `over` was set."""
    most = 0.0
    while not over.is_set():
        page = await scraped(site)
        most = max(most, page["octet_inflight_requests"] / page["octet_inflight_requests_limit"])
        await asyncio.sleep(0.05)
    return most


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of well-behaved requests, sent one after another."""

    waits: Sequence[float]
    """Seconds to the end of each answer."""
    seconds: float
    of_router: float
    """CPU seconds of the router for all requests together."""
    of_replica: float

    def replica_per_answer(self, idle: float) -> float:
        """Return the replica's CPU seconds per answer, without the `idle` CPU seconds per second that it uses
        anyway."""
        return (self.of_replica - idle * self.seconds) / len(self.waits)

    @property
    def usual_wait(self) -> float:
        return median(self.waits)


async def cost(site: Site, over: Awaitable[object]) -> Cost:
    """Send well-behaved requests until `over` completes, and return their cost."""
    pids = site.router.pid, site.replicas[0].process.pid
    began, (router, replica) = time.monotonic(), map(cpu_seconds, pids)
    async with steady_requests(site) as answered:
        await over
    assert answered
    return Cost(answered, time.monotonic() - began, cpu_seconds(pids[0]) - router, cpu_seconds(pids[1]) - replica)


async def idle_replica(site: Site, seconds: float) -> float:
    """Return the CPU seconds per second of a replica without requests."""
    pid = site.replicas[0].process.pid
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds
