"""Jobs of a revoked key, and which callers may cancel them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octet import AsyncClient, NotFound
from octet.client.errors import Forbidden
from octet.config.ensemble import JobsConfig
from router.api.keys.key_file import StaticKeys
from router.api.keys.keys import KeySet
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.jobs.harness import answering, jobs_ensemble, until
from tests.router.keys.keyed import IssuedKey, issue_key, key_set
from tests.router.serving.spy import SpyReplica, running_spy

ANN, BOB, OPS = issue_key("ann"), issue_key("bob"), issue_key("ops", "operate")
ALONE = JobsConfig(lease=0.4, concurrency=1)


@asynccontextmanager
async def running_holding_router(
    folder: Path, holds: asyncio.Event
) -> AsyncIterator[tuple[HttpHarness, SpyReplica, Any]]:
    """Run a router that runs one job at a time; a job ends once `holds` is set. Yield the router, its replica, and a
    function that makes a client for a key."""
    async with AsyncExitStack() as stack:
        spy = await stack.enter_async_context(running_spy(answering("word", holds=holds)))
        ensemble = jobs_ensemble(f"sqlite:{folder / 'state.db'}", ALONE)
        keys = StaticKeys(key_set(ANN, BOB, OPS))
        fronted = await stack.enter_async_context(
            running_http_router({"writer": [spy.address]}, ensemble=ensemble, keys=keys)
        )

        async def client(key: IssuedKey) -> AsyncClient:
            return await stack.enter_async_context(AsyncClient(fronted.routed.address, api_key=key.token))

        yield fronted, spy, client


async def submitted(client: AsyncClient, most: int = 1) -> list[str]:
    return [(await client.jobs.submit("hello", force="writer")).id for _ in range(most)]


@pytest.mark.parametrize("change", [{}, {"tenant": "else"}, {"expires_ms": 1}])
async def test_jobs_of_a_revoked_key_are_not_begun(tmp_path: Path, change: dict[str, Any]) -> None:
    holds = asyncio.Event()
    left = [replace(ANN.key, **change)] if change else []
    async with running_holding_router(tmp_path, holds) as (fronted, spy, client_of), asyncio.timeout(PATIENCE):
        ann, bob, ops = await client_of(ANN), await client_of(BOB), await client_of(OPS)
        running, queued = await submitted(ann, 2)
        (other,) = await submitted(bob)
        await until(lambda: spy.num_live == 1)
        fronted.routed.server.gate.replace(KeySet([*left, BOB.key, OPS.key]))
        holds.set()
        assert (await bob.jobs.wait(other)).status == "done"
        while not (job := await ops.jobs.get(queued, tenant="ann")).has_ended:
            await asyncio.sleep(0.05)
        assert job.status == "failed" and job.error is not None and job.error.reason == "unauthenticated"
        assert (await ops.jobs.get(running, tenant="ann")).status == "done", "a running job must be finished"
        assert len(spy.asked) == 2


async def test_only_an_operator_ends_another_tenants_jobs(tmp_path: Path) -> None:
    async with running_holding_router(tmp_path, asyncio.Event()) as (_, spy, client_of), asyncio.timeout(PATIENCE):
        ann, bob, ops = await client_of(ANN), await client_of(BOB), await client_of(OPS)
        running, queued = await submitted(ann, 2)
        await until(lambda: spy.num_live == 1)
        for call in _asked(bob, queued, "ann") + _asked(ops, queued, "") + _asked(ops, queued, "bob"):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(Forbidden, match="another tenant"):
            await bob.jobs.list(tenant="ann")
        assert await ops.jobs.list() == () == await ops.jobs.list(tenant="unknown")
        assert [job.id for job in await ann.jobs.list(tenant="ann")] == [queued, running]
        assert [job.id for job in await ops.jobs.list(tenant="ann")] == [queued, running]
        assert [job.id for job in await ops.jobs.list(before=queued, tenant="ann")] == [running]
        for job_id in (queued, running):
            assert (await ops.jobs.cancel(job_id, tenant="ann")).status == "cancelled"
        await until(lambda: spy.num_live == 0)
        assert len(spy.asked) == 1


async def test_only_an_operator_ends_another_tenants_jobs_over_http(tmp_path: Path) -> None:
    async with running_holding_router(tmp_path, asyncio.Event()) as (fronted, _, client_of), asyncio.timeout(PATIENCE):
        (job_id,) = await submitted(await client_of(ANN))

        async def status(key: IssuedKey, method: str, path: str) -> int:
            return (await fronted.send(method, f"/v1/jobs{path}", b"", key.headers)).status

        for key, query, found in ((BOB, "?tenant=ann", False), (OPS, "", False), (OPS, "?tenant=ann", True)):
            response = await fronted.send("GET", f"/v1/jobs{query}", b"", key.headers)
            assert (response.status == 200 and [job["id"] for job in response.json["jobs"]] == [job_id]) == found
            assert (await status(key, "GET", f"/{job_id}{query}") == 200) == found
            assert (await status(key, "POST", f"/{job_id}/cancel{query}") == 200) == found


def _asked(client: AsyncClient, job_id: str, tenant: str) -> list[Coroutine[Any, Any, Any]]:
    return [client.jobs.get(job_id, tenant=tenant), client.jobs.cancel(job_id, tenant=tenant)]
