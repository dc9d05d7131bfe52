"""Streams, and the ways in which they end."""

import asyncio
import gc
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import grpc
import pytest

from octet import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    InvalidRequest,
    OctetError,
    ReplicaLost,
    ServerError,
    Unavailable,
)
from octet.client.request import ClientRetryBudget
from octet.v1 import inference_pb2 as wire
from tests.octet.client.server import Script, ScriptedCall, busy, refuse, scripted
from tests.patience import PATIENCE

LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")
CUT = ScriptedCall(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
HANGS = ScriptedCall(hangs=True)


def test_basic_stream() -> None:
    with scripted() as script, Client(script.address) as c:
        c.infer("connect")
        with c.stream("Fix this CMakeLists: ...", intent="build-fix", priority=7, timeout=20) as answer:
            shown = [chunk.text for chunk in answer]
        assert shown == ["one ", "two ", "three"]
        assert answer.text == "one two three"
        assert (answer.receipt.specialist, answer.receipt.why) == ("stl", "the classifier is sure")
    _, call = script.calls
    assert (call.request.prompt, call.request.intent, call.request.priority) == (
        "Fix this CMakeLists: ...",
        "build-fix",
        7,
    )
    assert 19_000 < call.request.timeout_ms <= 20_000
    assert call.seconds is not None and 20 < call.seconds < 21, (
        "the call must outlast the request's timeout, so that the server can report it"
    )
    assert answer.request_id == answer.receipt.request_id == call.request.request_id


def test_preliminary_receipt_arrives_before_the_end() -> None:
    with scripted(HANGS) as script, Client(script.address) as client, client.stream("x") as answer:
        with pytest.raises(LookupError):
            _ = answer.receipt
        assert next(answer).text == "one "
        assert answer.receipt.specialist == "stl"


@pytest.mark.parametrize("how", ["break", "leave", "drop", "raise", "close the client"])
def test_leaving_a_stream_cancels_the_request(how: str) -> None:
    with scripted(HANGS) as script, Client(script.address) as client:
        if how == "break":
            with client.stream("x") as answer:
                for _ in answer:
                    break
            assert answer.text == "one " and list(answer) == []
        elif how == "leave":
            with client.stream("x"):
                assert script.live.wait(PATIENCE)
        elif how == "drop":
            assert next(client.stream("x")).text == "one "
            gc.collect()
        elif how == "raise":
            with pytest.raises(ZeroDivisionError), client.stream("x") as answer:
                raise ZeroDivisionError
        else:
            dropped = client.stream("x")
            next(dropped)
            client.close()
        assert len(script.calls) <= 1
        assert all(call.ended.wait(PATIENCE) for call in script.calls)


def test_cancelling_from_another_thread_ends_the_reader_with_an_error() -> None:
    with scripted(HANGS) as script, Client(script.address) as client, client.stream("x") as answer:
        for _ in range(3):
            next(answer)
        canceller = Timer(0.1, answer.cancel)
        canceller.start()
        with pytest.raises(Cancelled, match="cancelled") as caught:
            next(answer)
        canceller.join()
        assert caught.value.request_id == script.calls[0].request.request_id
        assert answer.text == "one two three" and answer.receipt.specialist == "stl"
        assert script.calls[0].ended.wait(PATIENCE)


def test_cancelling_ends_a_wait_for_the_next_attempt() -> None:
    with scripted(busy(20_000)) as script, Client(script.address) as client, client.stream("x") as answer:

        def cancel_during_the_wait() -> None:
            while not script.calls:
                time.sleep(0.01)
            time.sleep(0.2)
            answer.cancel()

        canceller = Thread(target=cancel_during_the_wait)
        canceller.start()
        with pytest.raises(Cancelled):
            next(answer)
        canceller.join()
        assert len(script.calls) == 1, "a wait that was cancelled must not lead to a second call"


def test_cut_off_stream_keeps_its_part() -> None:
    with scripted(CUT) as script, Client(script.address) as client, client.stream("x") as answer:
        with pytest.raises(ReplicaLost, match="the part that was received is valid") as caught:
            list(answer)
        assert answer.text == "one two three"
        assert caught.value.receipt is not None and caught.value.receipt.error is not None
        assert answer.receipt is caught.value.receipt
        assert caught.value.receipt.error.reason == caught.value.reason == "replica_lost"
        assert len(script.calls) == 1 and list(answer) == []


def test_stream_without_a_receipt_is_an_error() -> None:
    with (
        scripted(ScriptedCall(with_receipt=False)) as script,
        Client(script.address) as client,
        client.stream("x") as answer,
        pytest.raises(ServerError, match="without its receipt"),
    ):
        list(answer)


def test_silent_server_times_out() -> None:
    with scripted(ScriptedCall(words=(), is_routed=False, hangs=True)) as script, Client(script.address) as client:
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="no answer from"), client.stream("x", timeout=0.2) as answer:
            list(answer)
        assert time.monotonic() - begin > 0.2


def test_unreachable_error_says_what_to_do() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(Unavailable) as caught:
        client.infer("x")
    assert str(caught.value) == "nothing answers at 127.0.0.1:1; start it with: octet serve"


def test_oversized_message_is_not_reported_as_a_full_queue() -> None:
    with scripted() as script, Client(script.address) as client:
        with pytest.raises(InvalidRequest, match="too large to be sent"):
            client.infer("x" * (5 << 20))
        assert not script.calls


def test_threads_share_a_client() -> None:
    with scripted() as script, Client(script.address) as client:
        texts: list[str] = []

        def ask() -> None:
            with client.stream("x") as answer:
                texts.append("".join(chunk.text for chunk in answer))
            texts.append(client.infer("x").text)

        threads = [Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert texts == ["one two three"] * 16
        assert len({call.request.request_id for call in script.calls}) == 16


@pytest.mark.parametrize("keepalive", [None, 30.0])
def test_every_channel_reconnects_within_a_second(keepalive: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sets gRPC's backoff options. By default, gRPC waits up to two minutes between attempts."""
    given: list[dict[str, int]] = []
    for library in (grpc, grpc.aio):
        open_one = library.insecure_channel

        def opened(address: str, options: Any, open_one: Any = open_one) -> Any:
            given.append(dict(options))
            return open_one(address, options=options)

        monkeypatch.setattr(library, "insecure_channel", opened)
    with scripted() as script:
        with Client(script.address, keepalive=keepalive) as client:
            client.infer("x")

        async def ask() -> None:
            async with AsyncClient(script.address, keepalive=keepalive) as client:
                await client.infer("x")

        asyncio.run(ask())
    assert len(given) == 2
    for options in given:
        assert options["grpc.initial_reconnect_backoff_ms"] <= 100
        assert options["grpc.max_reconnect_backoff_ms"] <= 1000


def test_client_reconnects_to_a_restarted_server(tmp_path: Path) -> None:
    """A long reconnect backoff would make every retry fail. The address is a Unix socket, which no other test can take
    while the server is down."""
    address = f"unix:{tmp_path}/router"
    with scripted(address=address) as script, Client(address) as client:
        client.infer("x")
        script.stop()
        for _ in range(4):
            with pytest.raises(Unavailable):
                client.infer("x")
        with scripted(address=address):
            client._budget = ClientRetryBudget()
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                with suppress(Unavailable):
                    assert client.infer("x").text == "one two three"
                    return
    pytest.fail("the client did not reconnect")


async def cancelled_from_outside(script: Script, client: AsyncClient, *, task_too: bool) -> BaseException:
    async with client.stream("x") as answer:

        async def read() -> None:
            async for _ in answer:
                pass

        task = asyncio.ensure_future(read())
        assert await asyncio.to_thread(script.live.wait, PATIENCE)
        answer.cancel()
        if task_too:
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if result is None:
            pytest.fail("the read ended without an error")
        return result


@pytest.mark.parametrize("task_too", [False, True])
async def test_cancelled_error_is_raised_only_in_a_cancelled_task(task_too: bool) -> None:
    with scripted(HANGS) as script:
        async with AsyncClient(script.address) as client:
            ended = await cancelled_from_outside(script, client, task_too=task_too)
            assert isinstance(ended, asyncio.CancelledError if task_too else Cancelled)
            assert await asyncio.to_thread(script.calls[0].ended.wait, PATIENCE)


@pytest.mark.parametrize("how", ["break", "leave", "time out"])
async def test_leaving_an_async_stream_cancels_the_request(how: str) -> None:
    async def read(client: AsyncClient) -> None:
        async with client.stream("x") as answer:
            async for _ in answer:
                if how == "break":
                    break
            else:
                pytest.fail("the stream must not end by itself")

    with scripted(HANGS) as script:
        async with AsyncClient(script.address) as client:
            if how == "leave":
                async with client.stream("x"):
                    assert await asyncio.to_thread(script.live.wait, PATIENCE)
            elif how == "time out":
                reading = asyncio.create_task(read(client))
                assert await asyncio.to_thread(script.live.wait, PATIENCE)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reading, 0.01)
            else:
                await read(client)
            assert await asyncio.to_thread(script.calls[0].ended.wait, PATIENCE)


def test_error_is_caught_by_its_base_class() -> None:
    with (
        scripted(refuse(grpc.StatusCode.INTERNAL)) as script,
        Client(script.address) as client,
        pytest.raises(OctetError, match=r"the call to 127.0.0.1:\d+ ended with INTERNAL: no"),
    ):
        client.route("x")
