"""Router processes that are killed, stopped and restarted: each job ends exactly once."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from octet import AsyncClient, JobEvent
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.router.jobs.harness import answering, until
from tests.router.serving.spy import SpyReplica, running_spy
from tests.router.store.postgres_server import MISSING, PostgresServer, binaries, postgres_server
from tests.specialist.server.test_process import ROOT

LEASE = 4.0
Query = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    programs = binaries()
    if programs is None:
        pytest.skip(MISSING)
    with postgres_server(programs) as server:
        yield server


def ensemble(folder: Path, url: str) -> Path:
    jobs = {"concurrency": 2, "lease": LEASE}
    config = {
        "specialists": {"writer": {"describe": "words", "examples": ["write"]}},
        "store": {"url": url},
        "router": {"http": False, "jobs": jobs},
    }
    file = folder / "ensemble.yaml"
    file.write_text(json.dumps(config))
    return file


class Router:
    """A router process that can be killed and restarted on its port."""

    def __init__(self, config: Path, spy: SpyReplica) -> None:
        self.port = free_port()
        self._command = [
            *(sys.executable, "-m", "octet.cli", "router", "--config", str(config), "--port", str(self.port)),
            *("--replica", f"writer={spy.address}"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE)
        out = self._process.stdout
        assert out is not None
        assert await asyncio.to_thread(out.readline)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@asynccontextmanager
async def routers(config: Path, spy: SpyReplica, number: int = 1) -> AsyncIterator[list[Router]]:
    made = [Router(config, spy) for _ in range(number)]
    try:
        await made[0].start()
        yield made
    finally:
        for each in made:
            each.kill()


class Follower:
    """A client that records every event of a job."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self.events: list[JobEvent] = []
        self._task = asyncio.create_task(self._follow(client, job_id))

    async def _follow(self, client: AsyncClient, job_id: str) -> None:
        async for event in client.jobs.events(job_id, timeout=PATIENCE):
            self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def ended(self) -> JobEvent:
        async with asyncio.timeout(PATIENCE):
            await self._task
        assert [event.number for event in self.events] == list(range(1, len(self.events) + 1))
        assert [event.is_last for event in self.events] == [False] * (len(self.events) - 1) + [True]
        return self.events[-1]


def check_stored(query: Query, *statuses: str) -> None:
    """Check that every job in the store has ended, that no event is missing, and that only the last event is empty."""
    rows = query("SELECT id, status, events, owner FROM jobs ORDER BY number")
    assert [(status, owner) for _, status, _, owner in rows] == [(status, "") for status in statuses]
    for job_id, _, num_events, _ in rows:
        events = query(f"SELECT number, LENGTH(raw) FROM job_events WHERE job = '{job_id}' ORDER BY number")  # noqa: S608
        assert [number for number, _ in events] == list(range(1, num_events + 1))
        assert [number for number, size in events if size == 0] == [num_events]


def test_jobs_survive_a_killed_router(tmp_path: Path) -> None:
    """Two running jobs, a waiting job and a job that was just acknowledged all end after the router is killed and
    restarted."""

    async def scenario() -> None:
        config = ensemble(tmp_path, f"sqlite:{tmp_path / 'state.db'}")
        async with (
            running_spy(answering("never ", "ended ", holds=asyncio.Event())) as spy,
            routers(config, spy) as (router,),
            AsyncClient(router.address, max_retries=8) as client,
        ):
            ids = [(await client.jobs.submit(str(n), force="writer")).id for n in range(3)]
            followers = [Follower(client, job_id) for job_id in ids]
            await until(lambda: all("chunk" in each.kinds for each in followers[:2]))
            ids.append((await client.jobs.submit("last", force="writer", idempotency_key="last")).id)
            router.kill()
            spy.behave = answering("well ", "done")
            await router.start()
            assert (await client.jobs.submit("last", force="writer", idempotency_key="last")).id == ids[3]
            for each, attempts in zip(followers, (2, 2, 1), strict=True):
                job = (await each.ended()).job
                assert job is not None and (job.status, job.text, job.attempts) == ("done", "well done", attempts)
                assert each.kinds.count("restarted") == attempts - 1
            assert (await client.jobs.wait(ids[3], timeout=PATIENCE)).text == "well done"
        assert len(spy.asked) == 6

    asyncio.run(scenario())
    with sqlite3.connect(tmp_path / "state.db") as database:
        check_stored(lambda sql: database.execute(sql).fetchall(), *["done"] * 4)


def beat_of(postgres: PostgresServer, url: str) -> int:
    """Return how often the lease of the only job was renewed."""
    ((beat,),) = postgres.execute("SELECT beat FROM octet.jobs", url)
    return int(beat)


def test_another_router_takes_over_and_a_late_former_holder_changes_nothing(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.new_database()

    async def scenario() -> None:
        config = ensemble(tmp_path, url)
        may_finish = asyncio.Event()
        async with (
            running_spy(answering("of the ", "former holder", holds=may_finish)) as spy,
            routers(config, spy, 2) as (first, second),
            AsyncClient(first.address) as one,
            AsyncClient(second.address) as other,
        ):
            job_id = (await one.jobs.submit("hello", force="writer")).id
            first_follower = Follower(one, job_id)
            await until(lambda: "chunk" in first_follower.kinds)
            await second.start()
            second_follower = Follower(other, job_id)
            beat = await asyncio.to_thread(beat_of, postgres, url)
            async with asyncio.timeout(PATIENCE):  # Four renewals take at least the time of a lease.
                while await asyncio.to_thread(beat_of, postgres, url) < beat + 7:
                    await asyncio.sleep(0.1)
            assert second_follower.kinds == ["status", "status", "chunk"], (
                "a router that sends heartbeats must keep its job"
            )
            first.send(signal.SIGSTOP)
            spy.behave = answering("of the ", "new holder")
            job = (await second_follower.ended()).job
            assert job is not None and (job.status, job.text, job.attempts) == ("done", "of the new holder", 2)
            may_finish.set()
            first.send(signal.SIGCONT)
            assert (await first_follower.ended()).job == job, "every follower must get the same events"
            assert first_follower.events == second_follower.events
            await until(lambda: spy.num_live == 0)
            await _cancel_through_another(one, other, spy)
            assert await one.jobs.get(job_id) == job

    asyncio.run(scenario())
    check_stored(lambda sql: postgres.execute(sql.replace("FROM job", "FROM octet.job"), url), "done", "cancelled")


async def _cancel_through_another(one: AsyncClient, other: AsyncClient, spy: SpyReplica) -> None:
    spy.behave = answering("endless", holds=asyncio.Event())
    job_id = (await one.jobs.submit("endless", force="writer")).id
    await until(lambda: spy.num_live == 1)
    for client in (other, one):
        assert (await client.jobs.cancel(job_id)).status == "cancelled"
    await until(lambda: spy.num_live == 0)
