"""Rows 9 and 25: connections that never ask anything, and connections that ask and take back, thousands of times."""

import asyncio
import json
import re
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.faults.callers import Line, line
from tests.faults.figures import Figure
from tests.faults.flood import GENERATE, KINDS
from tests.faults.history import Question
from tests.faults.hostile import http_port, scraped, small_site
from tests.faults.http2 import PREFACE, SETTINGS, frame, headers
from tests.faults.site import Site, site

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
HALF_HTTP = (b"", HEAD, HEAD + b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{")
SAID = PREFACE + frame(SETTINGS, 0, 0)
HALF_GRPC = (b"", PREFACE[:10], PREFACE, SAID, SAID + headers(1, GENERATE))
NUM_HALF_OPEN = 500
ASKED = Question("writer", "somebody who means no harm", 8)


async def p99(router: Line, number: int) -> float:
    """Seconds until the whole answer, one after the other."""
    seconds = []
    for _ in range(number):
        account = await router.ask(ASKED)
        assert account.is_answered, account
        seconds.append((account.ended or 0.0) - account.began)
    return sorted(seconds)[int(len(seconds) * 0.99) - 1]


async def _held_open(port: int, sent: bytes, opened: Callable[[], None]) -> float:
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


def test_9_half_open_connections_are_closed_and_slow_nobody(long: bool, figure: Figure) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert limit > 3 * NUM_HALF_OPEN, f"only {limit} files may be open here; ulimit -n allows more"

    async def story(site: Site) -> None:
        doors = [(http_port(site), HALF_HTTP), (int(site.address.rpartition(":")[2]), HALF_GRPC)]
        number = 1000 if long else 60
        async with line(site.address) as router:
            await p99(router, number)
            alone = await p99(router, number)
            num_open = 0

            def opened() -> None:
                nonlocal num_open
                num_open += 1

            holding = [
                asyncio.create_task(_held_open(port, halves[index % len(halves)], opened))
                for port, halves in doors
                for index in range(NUM_HALF_OPEN // len(doors))
            ]
            while num_open < NUM_HALF_OPEN:
                await asyncio.sleep(0.01)
            beside = await p99(router, number)
            assert sum(not task.done() for task in holding) > NUM_HALF_OPEN / 2, "they were there meanwhile"
            seconds = max(await asyncio.gather(*holding))
        figure(9, "connections held half open", NUM_HALF_OPEN, "connections", ">= 500 connections")
        figure(9, "p99 of others beside them, of p99 alone", beside / alone, "", "<= 1.2", short="<= 100")
        figure(9, "until the last of them was closed", seconds, "s", "<= 60 s", short="<= 120 s")

    with site(small_site()) as made:
        asyncio.run(story(made))


async def _flood(address: str, kind: str, number: int) -> dict[str, Any]:
    """From a process of its own; again and again until so many were sent, for whoever is let go comes back."""
    sent, told = 0, {"was_closed": False}
    while sent < number:
        words = (sys.executable, "-m", "tests.faults.flood", address, kind, str(number - sent))
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        told = json.loads((await process.communicate())[0])
        assert process.returncode == 0
        sent += max(1, told["sent"])
        if told["was_closed"]:
            break
    return {**told, "sent": sent}


@asynccontextmanager
async def _asking_all_the_time(site: Site) -> AsyncIterator[list[bool]]:
    """Whether each of somebody's requests was answered."""
    answered: list[bool] = []
    over = asyncio.Event()

    async def ask() -> None:
        async with line(site.address) as router:
            while not over.is_set():
                answered.append((await router.ask(ASKED)).is_answered)

    asking = asyncio.create_task(ask())
    try:
        yield answered
    finally:
        over.set()
        await asking


async def _most_at_once(site: Site, over: asyncio.Event) -> float:
    """Requests being answered, of those that may be."""
    most = 0.0
    while not over.is_set():
        page = await scraped(site)
        most = max(most, page["octet_inflight_requests"] / page["octet_inflight_requests_limit"])
        await asyncio.sleep(0.05)
    return most


def _cpu_seconds(pid: int) -> float:
    fields = re.sub(r"^.*\) ", "", Path(f"/proc/{pid}/stat").read_text()).split()
    return (int(fields[11]) + int(fields[12])) / 100


async def _cost(site: Site, seconds: float) -> tuple[int, float]:
    """Requests answered in so long, and what the replica spent on each."""
    pid = site.replicas[0].process.pid
    before = _cpu_seconds(pid)
    async with _asking_all_the_time(site) as answered:
        await asyncio.sleep(seconds)
    assert all(answered) and answered
    return len(answered), (_cpu_seconds(pid) - before) / len(answered)


def test_25_streams_taken_back_pings_and_streams_without_end_keep_nobody_out(long: bool, figure: Figure) -> None:
    number = 10_000 if long else 1_000
    seconds = 10.0 if long else 3.0

    async def story(site: Site) -> None:
        await _cost(site, 1.0)
        num_alone, alone = await _cost(site, seconds)
        over = asyncio.Event()
        watching = asyncio.create_task(_most_at_once(site, over))
        attacking = asyncio.gather(*(_flood(site.address, kind, number) for kind in KINDS))
        num_answered, beside = await _cost(site, seconds)
        floods = {told["kind"]: told for told in await attacking}
        over.set()
        most = await watching
        print(floods, num_alone, num_answered)
        assert floods["pings"]["was_closed"], "who pings so often is let go"
        assert floods["resets"]["sent"] == floods["requests"]["sent"] == number or not long
        figure(25, "requests answered meanwhile, all of them", num_answered, "requests", ">= 1 requests")
        figure(25, "CPU of the replica for each, of the CPU without", beside / alone, "", "<= 1.2", short="<= 10")
        figure(25, "requests being answered at once, of the most there may be", most, "", "<= 1")
        async with line(site.address) as router:
            assert (await router.ask(ASKED)).is_answered

    with site(small_site()) as made:
        asyncio.run(story(made))
        assert made.router.is_alive and "Traceback" not in made.router.said, made.router.said[-2000:]
