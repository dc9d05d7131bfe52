"""What would go on without an end goes on no longer than its key is known."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from octet import AsyncClient
from octet.clock import wall_ms
from octet.rpc.refusal import Refusal
from octet.sdk.errors import Unauthenticated
from octet.v1 import error_pb2, operator_pb2
from router.keys.book import KeyBook
from router.keys.refusals import unknown_key
from router.keys.source import GivenKeys
from router.reception.standing import ALWAYS, Standing, current_standing
from tests.router.http.harness import Fronted, fronting
from tests.router.jobs.harness import QUICK, house, saying, until
from tests.router.keys.keyed import Made, book_of, made
from tests.router.service.spy import spying
from tests.service.harness import run

ANN, BOB, OPS = made("ann"), made("bob"), made("ops", "operate")
BODY = b'{"prompt": "hello", "force_specialists": "writer"}'


@asynccontextmanager
async def holding(folder: Path, book: KeyBook) -> AsyncIterator[Fronted]:
    """Where no job ends by itself."""
    ensemble = house(f"sqlite:{folder / 'state.db'}", QUICK)
    async with (
        spying(saying("word", holds=asyncio.Event())) as spy,
        fronting({"writer": [spy.address]}, ensemble=ensemble, keys=GivenKeys(book)) as fronted,
    ):
        yield fronted


async def events_of(fronted: Fronted, key: Made, watching: asyncio.Event) -> tuple[grpc.StatusCode, int]:
    """How watching an operator's events ends."""
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


def test_watching_ends_when_the_key_is_revoked_and_nobody_elses_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with holding(tmp_path, book_of(ANN, BOB, OPS)) as fronted, asyncio.timeout(20):
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
                fronted.routed.server.gate.replace(book_of(ANN, BOB, OPS))
                await asyncio.sleep(0.3)
                assert not any(task.done() for task in (operator, over_grpc, *over_http.values()))
                fronted.routed.server.gate.replace(book_of(BOB))
                assert await operator == GONE
                assert b'event: error\ndata: {"error":' in (await over_http[ANN]).body
                assert b"invalid_api_key" in (await over_http[ANN]).body
                with pytest.raises(Unauthenticated):
                    await over_grpc
            assert not over_http[BOB].done() and len(fronted.routed.server.jobs.watchers) == 1
            over_http[BOB].cancel()

    run(story())


@pytest.mark.parametrize("change", [{"role": "call"}, {"tenant": "else"}, {"digest": bytes(32)}], ids=str)
def test_a_key_that_is_another_ends_what_the_old_one_began(tmp_path: Path, change: dict[str, Any]) -> None:
    async def story() -> None:
        async with holding(tmp_path, book_of(OPS)) as fronted, asyncio.timeout(20):
            began = asyncio.Event()
            operator = asyncio.create_task(events_of(fronted, OPS, began))
            await began.wait()
            fronted.routed.server.gate.replace(KeyBook([replace(OPS.key, **change)]))
            assert await operator == GONE

    run(story())


def test_watching_ends_when_the_key_expires(tmp_path: Path) -> None:
    async def story() -> None:
        brief = made("brief", "operate", expires_ms=wall_ms() + 1500)
        async with holding(tmp_path, book_of(brief)) as fronted, asyncio.timeout(20):
            assert await events_of(fronted, brief, asyncio.Event()) == GONE
            assert wall_ms() >= (brief.key.expires_ms or 0)

    run(story())


def test_where_nobody_is_asked_for_a_key_nothing_ends() -> None:
    async def story() -> None:
        assert current_standing() is ALWAYS
        assert await ALWAYS.while_known(lambda: asyncio.sleep(0, "said")) == "said"
        with pytest.raises(TimeoutError):
            await ALWAYS.while_known(_late)

    run(story())


async def _late() -> None:
    raise TimeoutError


def test_what_has_ended_waits_for_nothing() -> None:
    async def story() -> None:
        known = Standing(lambda: None, unknown_key)
        waiting = asyncio.create_task(known.while_known(asyncio.Event().wait))
        await asyncio.sleep(0)
        known.end()
        known.end()
        for each in (waiting, known.while_known(asyncio.Event().wait)):
            with pytest.raises(Refusal):
                await each

    run(story())
