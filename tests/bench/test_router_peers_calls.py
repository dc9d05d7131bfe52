"""A backend sends what the `Order` in a prompt asks for, and callers count each token once, wherever the bytes are
split."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.http_client import HttpConnection
from bench.processes import HOST
from bench.router_peers.callers import CallFailed, GrpcCaller, HttpCaller, TokenCounter
from bench.router_peers.cases import WORD, Order, OrderMissing
from bench.router_peers.grpc_backend import TokenStream
from bench.router_peers.http_backend import MODEL, Backend
from bench.router_peers.site import backends
from bench.router_site import REPLICA, replica_request

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


class _RecordingTransport(asyncio.Transport):
    def write(self, data: object) -> None:
        pass


@given(st.sampled_from([_events, _whole]), st.integers(1, 9), st.sets(st.integers(1, 700)))
def test_tokens_are_counted_once_wherever_the_bytes_are_split(
    answer: Callable[[int], bytes], tokens: int, cuts: set[int]
) -> None:
    raw = answer(tokens)
    ends = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]

    async def read() -> int:
        counts: list[int] = []
        counter = TokenCounter(lambda tokens, _: counts.append(tokens))
        connection = HttpConnection()
        connection.connection_made(_RecordingTransport())
        asking = asyncio.ensure_future(connection.exchange(b"", counter.add))
        await asyncio.sleep(0)
        for begin, end in pairwise(ends):
            assert not asking.done()
            connection.data_received(raw[begin:end])
        assert (await asking).status == 200
        assert counter.first_token() > 0
        return sum(counts)

    assert asyncio.run(read()) == tokens


def _with_backend(use: Callable[[HttpCaller, list[int]], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Backend, HOST, 0)
        counts: list[int] = []
        async with HttpCaller(HOST, server.sockets[0].getsockname()[1], MODEL, acks_at_once=True) as caller:
            await use(caller, counts)
        server.close()

    asyncio.run(run())


def test_backend_streams_the_ordered_tokens() -> None:
    async def use(caller: HttpCaller, counts: list[int]) -> None:
        messages: list[int] = []

        def on_tokens(tokens: int, number: int) -> None:
            counts.append(tokens)
            messages.append(number)

        await caller.call("x" * 300_000, Order(40), on_tokens)
        assert sum(counts) == sum(messages) == 40
        begun = perf_counter()
        await caller.call("again", Order(40, 5_000), on_tokens)
        assert perf_counter() - begun > 39 * 0.005 - 0.01
        assert sum(counts) == sum(messages) == 80

    _with_backend(use)


@pytest.mark.parametrize(("order", "least_seconds"), [(Order(300), 0.0), (Order(30, 2_000), 29 * 0.002 - 0.005)])
def test_unread_token_stream_continues_and_repeats_nothing(order: Order, least_seconds: float) -> None:
    async def read_slowly() -> list[int]:
        stream, counts = TokenStream(order), [0]
        while counts[-1] < order.tokens:
            counts.append(await stream.beyond(counts[-1]))
            await asyncio.sleep(0.005)  # Let the reader fall behind.
        return counts

    begun = perf_counter()
    counts = asyncio.run(read_slowly())
    assert perf_counter() - begun >= least_seconds
    assert counts[-1] == order.tokens and all(before < after for before, after in pairwise(counts))
    assert len(counts) < order.tokens


def test_a_backend_sends_a_whole_answer() -> None:
    async def use(caller: HttpCaller, counts: list[int]) -> None:
        await caller.call("x", Order(7), lambda *figures: counts.extend(figures), stream=False)
        assert counts == [7, 1]

    _with_backend(use)


def test_an_answer_without_tokens_and_a_closed_port_are_failures() -> None:
    async def use(caller: HttpCaller, _: list[int]) -> None:
        with pytest.raises(CallFailed, match="has no token"):
            await caller.call("x", Order(0), stream=False)

    _with_backend(use)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        caller = HttpCaller(HOST, taken.getsockname()[1], MODEL, acks_at_once=False)
        with pytest.raises(CallFailed, match="nothing listens"):
            asyncio.run(caller.call("x", Order(1)))


@pytest.mark.parametrize(("prompt", "at_once"), [("why", 1), ("why", 8), ("why" * 300_000, 2)])
def test_our_client_calls_a_replica(prompt: str, at_once: int) -> None:
    """A prompt of 900 KB exceeds HTTP/2's initial flow-control window: the client must wait until the server permits
    more bytes."""
    counts: list[int] = []

    async def call_replica(port: int) -> None:
        async with GrpcCaller(f"{HOST}:{port}", REPLICA, replica_request, own_client=True) as caller:
            order = Order(20, 100)
            calls = [caller.call(prompt, order, lambda tokens, _: counts.append(tokens)) for _ in range(at_once)]
            assert all(0 < first < 60 for first in await asyncio.gather(*calls))
            assert sum(counts) == 20 * at_once
            assert await caller.call(prompt, Order(1)) > 0, "the connection must serve a second call"

    with backends("grpc_backend", 1) as (port,):
        asyncio.run(call_replica(port))


def test_refused_call_of_our_client_is_a_failure() -> None:
    async def call_replica(port: int) -> None:
        for method, prompt in (("/octet.v1.Specialist/Nothing", "why"), (REPLICA, "x" * (5 << 20))):
            async with GrpcCaller(f"{HOST}:{port}", method, replica_request, own_client=True) as caller:
                with pytest.raises(CallFailed):
                    await caller.call(prompt, Order(1))

    with backends("grpc_backend", 1) as (port,):
        asyncio.run(call_replica(port))
    asyncio.run(call_replica(port))
