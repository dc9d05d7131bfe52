"""A stream that would never end is closed when its key is revoked or expires."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octet import AsyncClient
from octet.client.errors import Unauthenticated
from octet.clock import wall_ms
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2, operator_pb2
from router.api.keys.gate import unknown_key
from router.api.keys.key_file import StaticKeys
from router.api.keys.keys import KeySet
from router.request import UNLIMITED_GRANT, AccessGrant, current_grant
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.jobs.harness import QUICK, answering, jobs_ensemble, until
from tests.router.keys.keyed import IssuedKey, issue_key, key_set
from tests.router.serving.spy import running_spy

ANN, BOB, OPS = issue_key("ann"), issue_key("bob"), issue_key("ops", "operate")
BODY = b'{"prompt": "hello", "force_specialists": "writer"}'


@asynccontextmanager
async def holding(folder: Path, book: KeySet) -> AsyncIterator[HttpHarness]:
    """Run a router on which no job ends by itself."""
    ensemble = jobs_ensemble(f"sqlite:{folder / 'state.db'}", QUICK)
    async with (
        running_spy(answering("word", holds=asyncio.Event())) as spy,
        running_http_router({"writer": [spy.address]}, ensemble=ensemble, keys=StaticKeys(book)) as fronted,
    ):
        yield fronted


async def events_of(fronted: HttpHarness, key: IssuedKey, watching: asyncio.Event) -> tuple[grpc.StatusCode, int]:
    """Watch operator events. Return the status and the error reason with which the watch ended."""
    watch = fronted.routed.channel.unary_stream(
        "/octet.v1.Operator/WatchEvents",
        operator_pb2.WatchEventsRequest.SerializeToString,
        operator_pb2.OperatorEvent.FromString,
    )
    call = watch(operator_pb2.WatchEventsRequest(), metadata=key.metadata)
    await call.initial_metadata()
    watching.set()
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        raw = dict(error.trailing_metadata() or ()).get("octet-error-bin", b"")
        return error.code(), error_pb2.Error.FromString(raw).reason
    return grpc.StatusCode.OK, 0


GONE = (grpc.StatusCode.UNAUTHENTICATED, error_pb2.ERROR_REASON_UNAUTHENTICATED)


async def test_revocation_ends_watches_of_that_key_only(tmp_path: Path) -> None:
    async with holding(tmp_path, key_set(ANN, BOB, OPS)) as fronted, asyncio.timeout(PATIENCE):
        jobs = {key: (await fronted.post(BODY, "/v1/jobs", **key.headers)).json["id"] for key in (ANN, BOB)}
        began = asyncio.Event()
        operator = asyncio.create_task(events_of(fronted, OPS, began))
        over_http = {
            key: asyncio.create_task(fronted.send("GET", f"/v1/jobs/{jobs[key]}/events", b"", key.headers))
            for key in (ANN, BOB)
        }
        async with AsyncClient(fronted.routed.address, api_key=ANN.token) as client:
            over_grpc = asyncio.create_task(client.jobs.wait(jobs[ANN]))
            await began.wait()
            await until(lambda: len(fronted.routed.server.jobs.watchers) == 3)
            fronted.routed.server.gate.replace(key_set(ANN, BOB, OPS))
            # A watch that had ended would be answered before these later calls.
            assert (await fronted.get("/healthz")).status == 200
            assert [job.id for job in await client.jobs.list()] == [jobs[ANN]]
            check = health_pb2_grpc.HealthStub(fronted.routed.channel).Check
            assert (await check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
            assert len(fronted.routed.server.jobs.watchers) == 3
            assert not any(task.done() for task in (operator, over_grpc, *over_http.values()))
            fronted.routed.server.gate.replace(key_set(BOB))
            assert await operator == GONE
            assert b'event: error\ndata: {"error":' in (await over_http[ANN]).body
            assert b"invalid_api_key" in (await over_http[ANN]).body
            with pytest.raises(Unauthenticated):
                await over_grpc
        assert not over_http[BOB].done() and len(fronted.routed.server.jobs.watchers) == 1
        over_http[BOB].cancel()


@pytest.mark.parametrize("change", [{"role": "call"}, {"tenant": "else"}, {"digest": bytes(32)}], ids=str)
async def test_replaced_key_ends_watches_of_the_old_one(tmp_path: Path, change: dict[str, Any]) -> None:
    async with holding(tmp_path, key_set(OPS)) as fronted, asyncio.timeout(PATIENCE):
        began = asyncio.Event()
        operator = asyncio.create_task(events_of(fronted, OPS, began))
        await began.wait()
        fronted.routed.server.gate.replace(KeySet([replace(OPS.key, **change)]))
        assert await operator == GONE


async def test_expiry_ends_watches(tmp_path: Path) -> None:
    brief = issue_key("brief", "operate", expires_ms=wall_ms() + 1500)
    async with holding(tmp_path, key_set(brief)) as fronted, asyncio.timeout(PATIENCE):
        assert await events_of(fronted, brief, asyncio.Event()) == GONE
        assert wall_ms() >= (brief.key.expires_ms or 0)


async def test_watches_without_keys_do_not_end() -> None:
    assert current_grant() is UNLIMITED_GRANT
    assert await UNLIMITED_GRANT.while_valid(lambda: asyncio.sleep(0, "said")) == "said"
    with pytest.raises(TimeoutError):
        await UNLIMITED_GRANT.while_valid(_late)


async def _late() -> None:
    raise TimeoutError


async def test_ended_grant_fails_at_once() -> None:
    known = AccessGrant(lambda: None, unknown_key)
    waiting = asyncio.create_task(known.while_valid(asyncio.Event().wait))
    await asyncio.sleep(0)
    known.end()
    known.end()
    for each in (waiting, known.while_valid(asyncio.Event().wait)):
        with pytest.raises(Refusal):
            await each
