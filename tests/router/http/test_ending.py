"""How an answer ends that is not read to its end: by the caller, by the router, by nobody reading."""

import asyncio
import json
import socket
from typing import Any

import pytest

from octet.v1 import inference_pb2
from octet.v1.specialist_pb2 import Chunk
from tests.router.http.harness import HELLO, SLOW, Fronted, fronting, saying
from tests.router.service.harness import quick
from tests.router.service.spy import spying
from tests.service.harness import run, serving, sim


def request(**fields: Any) -> bytes:
    body = json.dumps({"model": "octet/writer", "messages": HELLO, "max_tokens": 300, **fields}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def receipt_of(fronted: Fronted, request_id: str) -> inference_pb2.Receipt:
    return await fronted.routed.server.service.receipt(request_id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abruptly", [False, True])
def test_a_disconnect_ends_the_engines_work(stream: bool, abruptly: bool) -> None:
    async def story() -> None:
        async with serving(sim(SLOW)) as served, fronting({"writer": [served.address]}) as fronted:
            reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
            writer.write(request(stream=stream))
            await fronted.routed.until(lambda: served.server.generator.num_live == 1)
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

    run(story())


def test_so_it_does_where_more_requests_stand_in_line(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with serving(sim(SLOW)) as served, fronting({"writer": [served.address]}) as fronted:
            reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
            writer.write(request(stream=True) * 3)
            await fronted.routed.until(lambda: served.server.generator.num_live == 1)
            (live,) = fronted.routed.server.live
            assert b"200" in await reader.readline()
            writer.transport.abort()
            await fronted.routed.idle()
            await served.idle()
            receipt = await receipt_of(fronted, live.request_id)
            assert receipt.error.reason == inference_pb2.ERROR_REASON_CANCELLED
            await asyncio.sleep(1.5)
            assert "failed" not in caplog.text and "Exception" not in caplog.text

    run(story())


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_disconnect_ends_the_work_also_behind_a_request_that_waits(abruptly: bool, at_once: bool) -> None:
    async def story() -> None:
        async with serving(sim(SLOW)) as served, fronting({"writer": [served.address]}) as fronted:
            _, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
            waiting = request() + b"GET /healthz HTTP/1.1\r\n\r\n"
            writer.write(request(max_tokens=1000) + waiting * at_once)
            await fronted.routed.until(lambda: served.server.generator.num_live == 1)
            if not at_once:
                writer.write(waiting)
                await asyncio.sleep(0.1)
            (live,) = fronted.routed.server.live
            if abruptly:
                writer.transport.abort()
            else:
                writer.close()
            async with asyncio.timeout(5):
                await fronted.routed.idle()
                await served.idle()
            receipt = await receipt_of(fronted, live.request_id)
            assert receipt.error.reason == inference_pb2.ERROR_REASON_CANCELLED
            await fronted.routed.until(lambda: not fronted.connections)

    run(story())


def test_who_never_reads_is_let_go_and_the_receipt_says_so() -> None:
    async def story() -> None:
        endless = saying(*(Chunk(text="x" * 10_000, token_ids=[1]) for _ in range(3000)))
        async with (
            spying(endless) as spy,
            fronting({"writer": [spy.address]}, dispatch=quick(stall_seconds=0.5)) as fronted,
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

    run(story())


def test_a_cancel_through_grpc_reaches_whoever_waits_here() -> None:
    async def story() -> None:
        async with serving(sim(SLOW)) as served, fronting({"writer": [served.address]}) as fronted:
            asked = asyncio.create_task(fronted.ask(max_tokens=300))
            await fronted.routed.until(lambda: len(fronted.routed.server.live) == 1)
            (live,) = fronted.routed.server.live
            message = inference_pb2.CancelRequest(request_id=live.request_id)
            await fronted.routed.call("Cancel", message, inference_pb2.CancelResponse)
            heard = await asked
            assert (heard.status, heard.error["code"]) == (499, "cancelled")

    run(story())


def test_a_drain_finishes_what_runs_and_refuses_what_comes() -> None:
    async def story() -> None:
        async with serving(sim(SLOW)) as served, fronting({"writer": [served.address]}) as fronted:
            asked = asyncio.create_task(fronted.ask(max_tokens=20, stream=True))
            await fronted.routed.until(lambda: served.server.generator.num_live == 1)
            draining = asyncio.create_task(fronted.routed.server.drain())
            await fronted.routed.until(lambda: fronted.routed.server.service.draining)
            heard = await fronted.ask()
            assert (heard.status, heard.error["code"]) == (503, "draining")
            assert heard.headers["connection"] == "close", "who asks again asks somebody else"
            assert (await fronted.get("/readyz")).json == {"status": "draining"}
            assert (await fronted.get("/healthz")).status == 200
            assert (await asked).events[-1] == "[DONE]"
            await draining

    run(story())


def test_probes_pass_while_the_doors_are_being_closed_and_others_wait() -> None:
    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            doorstep = fronted.routed.server._doorstep
            async with doorstep.held():
                asked = asyncio.create_task(fronted.ask(max_tokens=2))
                await fronted.routed.until(lambda: doorstep.num_held == 1)
                async with asyncio.timeout(30):
                    statuses = {path: (await fronted.get(path)).status for path in ("/healthz", "/readyz", "/metrics")}
                assert statuses == {"/healthz": 200, "/readyz": 200, "/metrics": 200}
                assert not asked.done()
            assert (await asked).status == 200

    run(story())


@pytest.mark.parametrize("num_callers", [1, 24])
def test_who_asks_again_as_soon_as_he_is_refused_is_never_cut_off(num_callers: int) -> None:
    """A new connection each time, as he was told to. Whoever had one that was not looked at yet was reset."""

    async def story() -> None:
        async with serving(sim()) as served, fronting({"writer": [served.address]}) as fronted:
            statuses: list[list[int]] = [[] for _ in range(num_callers)]

            async def ask_for_ever(heard: list[int]) -> None:
                while True:
                    try:
                        heard.append((await fronted.ask(max_tokens=2)).status)
                    except ConnectionRefusedError:
                        return

            asking = [asyncio.create_task(ask_for_ever(heard)) for heard in statuses]
            await asyncio.sleep(0.3)
            await fronted.routed.server.stop(10)
            await asyncio.gather(*asking)
            assert all(heard[-1] == 503 for heard in statuses), "told, and then there was nobody"
            assert {status for heard in statuses for status in heard} <= {200, 503}

    run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_an_end_without_grace_leaves_nothing_behind(stream: bool) -> None:
    async def story() -> None:
        async with serving(sim(SLOW)) as served:
            async with fronting({"writer": [served.address]}) as fronted:
                reader, writer = await asyncio.open_connection("127.0.0.1", fronted.port)
                writer.write(request(stream=stream))
                await fronted.routed.until(lambda: served.server.generator.num_live == 1)
                if stream:
                    await reader.readline()
                await fronted.routed.server.stop(0)
                said = await reader.read()
                assert b"[DONE]" not in said
                if not stream:
                    assert b"503" in said.splitlines()[0] and b"this router is ending" in said
                writer.close()
                assert len(fronted.routed.server.live) == 0 and not fronted.connections
            await served.idle()

    run(story())
