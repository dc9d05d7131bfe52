"""Backends do as they are told, and callers count every token however the bytes come."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.http_client import HttpConnection
from bench.peers.process import HOST
from bench.router_peers.callers import (
    REPLICA,
    WORD,
    CallFailed,
    GrpcCaller,
    HttpCaller,
    Order,
    OrderMissing,
    TokenCounter,
    replica_request,
)
from bench.router_peers.grpc_backend import TokenStream
from bench.router_peers.http_backend import MODEL, Backend
from bench.router_peers.site import backends

ORDERS = st.builds(Order, st.integers(1, 10_000), st.integers(0, 100_000))


@given(ORDERS, ORDERS, st.text(max_size=50), st.text(max_size=50).filter(lambda text: "[" not in text))
def test_the_last_order_of_a_prompt_counts(other: Order, order: Order, before: str, behind: str) -> None:
    assert Order.read(f"{before}{other} {order}{behind}".encode()) == order


@given(st.text(max_size=50).filter(lambda text: "tokens" not in text))
def test_prompt_without_an_order_is_refused(text: str) -> None:
    with pytest.raises(OrderMissing):
        Order.read(text.encode())


def _events(tokens: int) -> bytes:
    frames = [f'data: {{"content":"{WORD}"}}\n\n'.encode() for _ in range(tokens)]
    chunks = b"".join(f"{len(frame):x}\r\n".encode() + frame + b"\r\n" for frame in frames)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _whole(tokens: int) -> bytes:
    body = (WORD * tokens).encode()
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class _Written(asyncio.Transport):
    def write(self, data: object) -> None:
        pass


@given(st.sampled_from([_events, _whole]), st.integers(1, 9), st.sets(st.integers(1, 700)))
def test_tokens_are_counted_once_wherever_the_bytes_are_cut(
    answer: Callable[[int], bytes], tokens: int, cuts: set[int]
) -> None:
    raw = answer(tokens)
    ends = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]

    async def read() -> int:
        heard: list[int] = []
        counter = TokenCounter(lambda tokens, _: heard.append(tokens))
        connection = HttpConnection()
        connection.connection_made(_Written())
        asking = asyncio.ensure_future(connection.exchange(b"", counter.add))
        await asyncio.sleep(0)
        for begin, end in pairwise(ends):
            assert not asking.done()
            connection.data_received(raw[begin:end])
        assert (await asking).status == 200
        assert counter.first_token() > 0
        return sum(heard)

    assert asyncio.run(read()) == tokens


def _with_backend(use: Callable[[HttpCaller, list[int]], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Backend, HOST, 0)
        heard: list[int] = []
        async with HttpCaller(HOST, server.sockets[0].getsockname()[1], MODEL, acks_at_once=True) as caller:
            await use(caller, heard)
        server.close()

    asyncio.run(run())


def test_a_backend_streams_what_was_ordered() -> None:
    async def use(caller: HttpCaller, heard: list[int]) -> None:
        messages: list[int] = []

        def told(tokens: int, number: int) -> None:
            heard.append(tokens)
            messages.append(number)

        await caller.call("x" * 300_000, Order(40), told)
        assert sum(heard) == sum(messages) == 40
        begun = perf_counter()
        await caller.call("again", Order(40, 5_000), told)
        assert perf_counter() - begun > 39 * 0.005 - 0.01
        assert sum(heard) == sum(messages) == 80

    _with_backend(use)


@pytest.mark.parametrize(("order", "least_seconds"), [(Order(300), 0.0), (Order(30, 2_000), 29 * 0.002 - 0.005)])
def test_unread_token_stream_continues_and_repeats_nothing(order: Order, least_seconds: float) -> None:
    async def listen() -> list[int]:
        speech, heard = TokenStream(order), [0]
        while heard[-1] < order.tokens:
            heard.append(await speech.beyond(heard[-1]))
            await asyncio.sleep(0.005)  # busy otherwise
        return heard

    begun = perf_counter()
    heard = asyncio.run(listen())
    assert perf_counter() - begun >= least_seconds
    assert heard[-1] == order.tokens and all(before < after for before, after in pairwise(heard))
    assert len(heard) < order.tokens


def test_a_backend_answers_as_a_whole() -> None:
    async def use(caller: HttpCaller, heard: list[int]) -> None:
        await caller.call("x", Order(7), lambda *told: heard.extend(told), stream=False)
        assert heard == [7, 1]

    _with_backend(use)


def test_refusals_and_silence_are_failures() -> None:
    async def use(caller: HttpCaller, _: list[int]) -> None:
        with pytest.raises(CallFailed, match="without a token"):
            await caller.call("x", Order(0), stream=False)

    _with_backend(use)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        nobody = HttpCaller(HOST, taken.getsockname()[1], MODEL, acks_at_once=False)
        with pytest.raises(CallFailed, match="nothing listens"):
            asyncio.run(nobody.call("x", Order(1)))


@pytest.mark.parametrize(("prompt", "at_once"), [("why", 1), ("why", 8), ("why" * 300_000, 2)])
def test_a_replica_is_called_by_hand(prompt: str, at_once: int) -> None:
    """Long prompts too: no more is sent than the server allows."""
    heard: list[int] = []

    async def story(port: int) -> None:
        async with GrpcCaller(f"{HOST}:{port}", REPLICA, replica_request, own_client=True) as caller:
            order = Order(20, 100)
            calls = [caller.call(prompt, order, lambda tokens, _: heard.append(tokens)) for _ in range(at_once)]
            assert all(0 < first < 10 for first in await asyncio.gather(*calls))
            assert sum(heard) == 20 * at_once
            assert await caller.call(prompt, Order(1)) > 0, "and again"

    with backends("grpc_backend", 1) as (port,):
        asyncio.run(story(port))


def test_a_call_by_hand_that_is_refused_has_failed() -> None:
    async def story(port: int) -> None:
        for method, prompt in (("/octet.v1.Specialist/Nothing", "why"), (REPLICA, "x" * (5 << 20))):
            async with GrpcCaller(f"{HOST}:{port}", method, replica_request, own_client=True) as caller:
                with pytest.raises(CallFailed):
                    await caller.call(prompt, Order(1))

    with backends("grpc_backend", 1) as (port,):
        asyncio.run(story(port))
    asyncio.run(story(port))
