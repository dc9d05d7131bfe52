"""Answers that end early because the caller disconnects or does not read, or because the router stops."""

import asyncio
import gc
import json
import socket
from typing import Any

import pytest

from octet.v1 import inference_pb2
from octet.v1.specialist_pb2 import Chunk
from tests.patience import PATIENCE
from tests.router.http.harness import HELLO, SLOW, HttpHarness, answer_with, running_http_router
from tests.router.serving.harness import patient_dispatch
from tests.router.serving.spy import running_spy
from tests.specialist.server.harness import running_replica, sim


def request(**fields: Any) -> bytes:
    body = json.dumps({"model": "octet/writer", "messages": HELLO, "max_tokens": 300, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def receipt_of(fronted: HttpHarness, request_id: str) -> inference_pb2.Receipt:
    return await fronted.routed.server.service.receipt(request_id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abruptly", [False, True])
async def test_disconnect_stops_the_engine(stream: bool, abruptly: bool) -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
        writer.write(request(stream=stream))
        await fronted.routed.until(lambda: served.server.handler.num_live == 1)
        (live,) = fronted.routed.server.live
        if stream:
            assert b"200" in await reader.readline()
        if abruptly:
            writer.transport.abort()
        else:
            writer.close()
        await fronted.routed.idle()
        await served.idle()
        served.check_whole()
        receipt = await receipt_of(fronted, live.request_id)
        assert receipt.error.reason == inference_pb2.ERROR_REASON_CANCELLED


async def test_disconnect_stops_the_engine_with_pipelined_requests(caplog: pytest.LogCaptureFixture) -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
        writer.write(request(stream=True) * 3)
        await fronted.routed.until(lambda: served.server.handler.num_live == 1)
        (live,) = fronted.routed.server.live
        assert b"200" in await reader.readline()
        writer.transport.abort()
        await fronted.routed.idle()
        await served.idle()
        receipt = await receipt_of(fronted, live.request_id)
        assert receipt.error.reason == inference_pb2.ERROR_REASON_CANCELLED
        await fronted.routed.until(lambda: fronted.is_http_idle)
        gc.collect()  # An exception that no code has retrieved is logged now.
        await asyncio.sleep(0)
        assert "failed" not in caplog.text and "Exception" not in caplog.text


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
async def test_disconnect_is_noticed_behind_an_unread_request(abruptly: bool, at_once: bool) -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        _, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
        waiting = request() + b"GET /healthz HTTP/1.1\r\n\r\n"
        writer.write(request(max_tokens=1000) + waiting * at_once)
        await fronted.routed.until(lambda: served.server.handler.num_live == 1)
        if not at_once:
            writer.write(waiting)
            await asyncio.sleep(0.1)
        (live,) = fronted.routed.server.live
        if abruptly:
            writer.transport.abort()
        else:
            writer.close()
        async with asyncio.timeout(PATIENCE):
            await fronted.routed.idle()
            await served.idle()
        receipt = await receipt_of(fronted, live.request_id)
        assert receipt.error.reason == inference_pb2.ERROR_REASON_CANCELLED
        await fronted.routed.until(lambda: not fronted.connections)


async def test_caller_that_never_reads_is_disconnected_and_recorded() -> None:
    endless = answer_with(*(Chunk(text="x" * 10_000, token_ids=[1]) for _ in range(3000)))
    async with (
        running_spy(endless) as spy,
        running_http_router({"writer": [spy.address]}, dispatch=patient_dispatch(stall_seconds=0.5)) as fronted,
    ):
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(deaf, ("127.0.0.1", fronted.port))
        await loop.sock_sendall(deaf, request(stream=True))
        await fronted.routed.until(lambda: len(fronted.routed.server.live) == 1)
        (live,) = fronted.routed.server.live
        await fronted.routed.idle()
        receipt = await receipt_of(fronted, live.request_id)
        assert receipt.error.reason == inference_pb2.ERROR_REASON_CALLER_STALLED
        await fronted.routed.until(lambda: spy.num_live == 0)
        await fronted.routed.until(lambda: not fronted.connections)
        deaf.close()


async def test_cancel_over_grpc_ends_an_http_request() -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        asked = asyncio.create_task(fronted.ask(max_tokens=300))
        await fronted.routed.until(lambda: len(fronted.routed.server.live) == 1)
        (live,) = fronted.routed.server.live
        message = inference_pb2.CancelRequest(request_id=live.request_id)
        await fronted.routed.call("Cancel", message, inference_pb2.CancelResponse)
        response = await asked
        assert (response.status, response.error["code"]) == (499, "cancelled")


async def test_drain_finishes_running_requests_and_refuses_new_ones() -> None:
    async with running_replica(sim(SLOW)) as served, running_http_router({"writer": [served.address]}) as fronted:
        asked = asyncio.create_task(fronted.ask(max_tokens=20, stream=True))
        await fronted.routed.until(lambda: served.server.handler.num_live == 1)
        draining = asyncio.create_task(fronted.routed.server.drain())
        await fronted.routed.until(lambda: fronted.routed.server.service.draining)
        response = await fronted.ask()
        assert (response.status, response.error["code"]) == (503, "draining")
        assert response.headers["connection"] == "close", "a retry must reach another router"
        assert (await fronted.get("/readyz")).json == {"status": "draining"}
        assert (await fronted.get("/healthz")).status == 200
        assert (await asked).events[-1] == "[DONE]"
        await draining


async def test_probes_pass_the_drain_gate_and_requests_wait() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        drain_gate = fronted.routed.server._drain_gate
        async with drain_gate.hold():
            asked = asyncio.create_task(fronted.ask(max_tokens=2))
            await fronted.routed.until(lambda: drain_gate.num_held == 1)
            async with asyncio.timeout(PATIENCE):
                statuses = {path: (await fronted.get(path)).status for path in ("/healthz", "/readyz", "/metrics")}
            assert statuses == {"/healthz": 200, "/readyz": 200, "/metrics": 200}
            assert not asked.done()
        assert (await asked).status == 200


@pytest.mark.parametrize("num_callers", [1, 24])
async def test_immediate_retries_during_shutdown_are_never_reset(num_callers: int) -> None:
    """Every retry uses a new connection. A connection that the server has not accepted yet must not be reset."""
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        statuses: list[list[int]] = [[] for _ in range(num_callers)]

        async def ask_for_ever(response: list[int]) -> None:
            while True:
                try:
                    response.append((await fronted.ask(max_tokens=2)).status)
                except ConnectionRefusedError:
                    return

        asking = [asyncio.create_task(ask_for_ever(response)) for response in statuses]
        await asyncio.sleep(0.3)
        await fronted.routed.server.stop(600)
        await asyncio.gather(*asking)
        assert all(response[-1] == 503 for response in statuses), "retries must be refused until the listener is closed"
        assert {status for response in statuses for status in response} <= {200, 503}


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_without_grace_leaves_no_request_or_connection(stream: bool) -> None:
    async with running_replica(sim(SLOW)) as served:
        async with running_http_router({"writer": [served.address]}) as fronted:
            reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
            writer.write(request(stream=stream))
            await fronted.routed.until(lambda: served.server.handler.num_live == 1)
            if stream:
                await reader.readline()
            await fronted.routed.server.stop(0)
            said = await reader.read()
            assert b"[DONE]" not in said
            if not stream:
                assert b"503" in said.splitlines()[0] and b"this router is shutting down" in said
            writer.close()
            assert len(fronted.routed.server.live) == 0 and not fronted.connections
        await served.idle()
