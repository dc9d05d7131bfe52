"""Suspects in the whole router. A suspect is a request that may have killed a replica."""

import asyncio
from collections.abc import Iterable

import pytest

from octet.identity import digest_parts
from router import request
from router.dispatch.replicas.replica import ReplicaConnection
from tests.router.serving.harness import RouterHarness, infer_request, running_router
from tests.router.serving.spy import SpyReplica, hang, running_spy


async def test_content_is_hashed_once_and_only_while_there_are_suspects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[bytes] = []

    def counted(parts: Iterable[bytes]) -> bytes:
        hashed.append(b"")
        return digest_parts(parts)

    monkeypatch.setattr(request, "digest_parts", counted)
    async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
        assert (await routed.ask(infer_request())).reason == 0 and not hashed
        routed.server.quarantine.died_with(lambda: b"another prompt", ReplicaConnection())
        for num_asked in (1, 2):
            assert (await routed.ask(infer_request())).reason == 0
            assert len(hashed) == num_asked


@pytest.mark.parametrize("leave", ["hang up", "deadline"])
async def test_a_request_that_left_shortly_before_its_replica_died_is_a_suspect(leave: str) -> None:
    async with running_spy(hang) as spy, running_router({"writer": [spy.address]}) as routed:
        await left(routed, spy, leave)
        assert len(routed.server.quarantine.records) == 0
        (replica,) = routed.server.fleet.replicas
        replica.disconnected("killed")
        assert len(routed.server.quarantine.records) == 1


async def left(routed: RouterHarness, spy: SpyReplica, leave: str) -> None:
    if leave == "deadline":
        await routed.ask(infer_request(timeout_ms=300))
    else:
        call = routed.generate(infer_request())
        reading = asyncio.create_task(call.read())
        await routed.until(lambda: spy.asked)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await routed.idle()
