"""A stream from its first word to whichever end it takes."""

import asyncio
import gc
import time
from contextlib import suppress
from threading import Thread, Timer

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
from octet.sdk.retry import RetryBudget
from octet.v1 import inference_pb2 as wire
from tests.octet.sdk.server import Act, busy, refuse, scripted
from tests.service.harness import run

LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")
CUT = Act(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
HANGS = Act(hangs=True)


def test_what_people_type() -> None:
    with scripted() as script, Client(script.address) as c:
        with c.stream("Fix this CMakeLists: ...", intent="build-fix", priority=7, timeout=20) as answer:
            shown = [chunk.text for chunk in answer]
        assert shown == ["one ", "two ", "three"]
        assert answer.text == "one two three"
        assert (answer.receipt.specialist, answer.receipt.why) == ("stl", "the classifier is sure")
    (call,) = script.calls
    assert (call.request.prompt, call.request.intent, call.request.priority) == (
        "Fix this CMakeLists: ...",
        "build-fix",
        7,
    )
    assert 19_000 < call.request.timeout_ms <= 20_000
    assert call.seconds is not None and 20 < call.seconds < 21, "the server gets to say that its time is up"
    assert answer.request_id == answer.receipt.request_id == call.request.request_id


def test_it_is_routed_before_it_ends() -> None:
    with scripted(HANGS) as script, Client(script.address) as client, client.stream("x") as answer:
        with pytest.raises(LookupError):
            _ = answer.receipt
        assert next(answer).text == "one "
        assert answer.receipt.specialist == "stl"


@pytest.mark.parametrize("how", ["break", "leave", "drop", "raise", "close the client"])
def test_whoever_stops_reading_stops_the_server(how: str) -> None:
    with scripted(HANGS) as script, Client(script.address) as client:
        if how == "break":
            with client.stream("x") as answer:
                for _ in answer:
                    break
            assert answer.text == "one " and list(answer) == []
        elif how == "leave":
            with client.stream("x"):
                assert script.live.wait(5)
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
        assert all(call.ended.wait(5) for call in script.calls)


def test_cancelling_from_another_thread_ends_the_reader_with_an_error() -> None:
    with scripted(HANGS) as script, Client(script.address) as client, client.stream("x") as answer:
        canceller = Timer(0.1, answer.cancel)
        canceller.start()
        with pytest.raises(Cancelled, match="cancelled") as caught:
            list(answer)
        canceller.join()
        assert caught.value.request_id == script.calls[0].request.request_id
        assert answer.text == "one two three" and answer.receipt.specialist == "stl"
        assert script.calls[0].ended.wait(5)


def test_cancelling_ends_a_wait_for_the_next_attempt() -> None:
    with scripted(busy(20_000)) as script, Client(script.address) as client, client.stream("x") as answer:
        canceller = Timer(0.2, answer.cancel)
        canceller.start()
        begin = time.monotonic()
        with pytest.raises(Cancelled):
            next(answer)
        canceller.join()
        assert time.monotonic() - begin < 5 and len(script.calls) == 1


def test_an_answer_that_is_cut_stands_as_far_as_it_came() -> None:
    with scripted(CUT) as script, Client(script.address) as client, client.stream("x") as answer:
        with pytest.raises(ReplicaLost, match="what came before stands") as caught:
            list(answer)
        assert answer.text == "one two three"
        assert caught.value.receipt is not None and caught.value.receipt.error is not None
        assert answer.receipt is caught.value.receipt
        assert caught.value.receipt.error.reason == caught.value.reason == "replica_lost"
        assert len(script.calls) == 1 and list(answer) == []


def test_an_end_without_a_receipt_is_no_good_end() -> None:
    with (
        scripted(Act(with_receipt=False)) as script,
        Client(script.address) as client,
        client.stream("x") as answer,
        pytest.raises(ServerError, match="without its receipt"),
    ):
        list(answer)


def test_a_server_that_says_nothing_is_left_when_the_time_is_up() -> None:
    with scripted(Act(words=(), is_routed=False, hangs=True)) as script, Client(script.address) as client:
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="no answer from"), client.stream("x", timeout=0.2) as answer:
            list(answer)
        assert 0.2 < time.monotonic() - begin < 5


def test_nothing_there_is_said_with_what_to_do() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(Unavailable) as caught:
        client.infer("x")
    assert str(caught.value) == "nothing answers at 127.0.0.1:1; start it with: octet serve"


def test_what_is_too_large_is_not_taken_for_a_full_queue() -> None:
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
            thread.join(10)
        assert texts == ["one two three"] * 16
        assert len({call.request.request_id for call in script.calls}) == 16


def test_a_client_comes_back_with_its_server() -> None:
    """A connection that waits seconds before it looks again would make every retry fail."""
    with scripted() as script, Client(script.address) as client:
        client.infer("x")
        port = int(script.address.rpartition(":")[2])
        script.stop()
        for _ in range(4):
            with pytest.raises(Unavailable):
                client.infer("x")
        with scripted(port=port):
            client._budget = RetryBudget()
            begin = time.monotonic()
            while time.monotonic() - begin < 20:
                with suppress(Unavailable):
                    client.infer("x")
                    break
            assert time.monotonic() - begin < 15


async def cancelled_from_outside(client: AsyncClient, *, task_too: bool) -> BaseException:
    async with client.stream("x") as answer:

        async def read() -> None:
            async for _ in answer:
                pass

        task = asyncio.ensure_future(read())
        await asyncio.sleep(0.1)
        answer.cancel()
        if task_too:
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if result is None:
            pytest.fail("it ended well")
        return result


@pytest.mark.parametrize("task_too", [False, True])
def test_only_a_cancelled_task_is_told_that_it_is_cancelled(task_too: bool) -> None:
    async def scenario() -> None:
        with scripted(HANGS) as script:
            async with AsyncClient(script.address) as client:
                ended = await cancelled_from_outside(client, task_too=task_too)
                assert isinstance(ended, asyncio.CancelledError if task_too else Cancelled)
                assert await asyncio.to_thread(script.calls[0].ended.wait, 5)

    run(scenario())


@pytest.mark.parametrize("how", ["break", "leave", "time out"])
def test_a_coroutine_that_stops_reading_stops_the_server(how: str) -> None:
    async def read(client: AsyncClient) -> None:
        async with client.stream("x") as answer:
            async for _ in answer:
                if how == "break":
                    break
            else:
                pytest.fail("it never ends")

    async def scenario() -> None:
        with scripted(HANGS) as script:
            async with AsyncClient(script.address) as client:
                if how == "leave":
                    async with client.stream("x"):
                        assert await asyncio.to_thread(script.live.wait, 5)
                elif how == "time out":
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(read(client), 0.2)
                else:
                    await read(client)
                assert await asyncio.to_thread(script.calls[0].ended.wait, 5)

    run(scenario())


def test_an_error_is_caught_by_its_base() -> None:
    with (
        scripted(refuse(grpc.StatusCode.INTERNAL)) as script,
        Client(script.address) as client,
        pytest.raises(OctetError, match=r"the call to 127.0.0.1:\d+ ended with INTERNAL: no"),
    ):
        client.route("x")
