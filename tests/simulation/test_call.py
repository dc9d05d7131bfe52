"""Simulated calls between processes behave like gRPC calls."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import grpc
import pytest

from simulation.event_loop import HeapLoop, Process
from simulation.network import KEEPALIVE_SECONDS, WINDOW_BYTES, Address, Channel, Link, Port

Handler = Callable[[bytes, Any], Awaitable[None]]
METHOD = "/test.Service/Method"


class Connection:
    def __init__(self, handler: Handler) -> None:
        self.loop = HeapLoop()
        self.link = Link(self.loop, Random(1))
        self.process = Process("server")
        self.address, port = Address(), Port()
        handlers = {"Method": grpc.unary_stream_rpc_method_handler(handler)}
        port.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))
        self.address.listen(self.process, port)
        self.channel = Channel(self.loop, self.link, self.address, Random(2))
        self.call = partial(self.channel.stream, METHOD)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        self.loop.run_until_complete(work())
        self.loop.cancel_all()
        assert not self.loop.errors
        self.loop.close()


async def echo(raw: bytes, context: Any) -> None:
    for number in range(3):
        await context.write(raw + str(number).encode())


async def forever(_: bytes, context: Any) -> None:
    await context.write(b"begun")
    await asyncio.Event().wait()


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        while await call.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = raised.value.code()
    return code


def test_messages_arrive_in_order_and_the_stream_ends() -> None:
    connection = Connection(echo)

    async def work() -> None:
        assert [raw async for raw in connection.call(b"a")] == [b"a0", b"a1", b"a2"]
        assert connection.loop.time() > 1000.0

    connection.run(work)


def test_a_refusal_carries_its_trailing_metadata() -> None:
    async def refuse(_: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (("octet-error-bin", b"why"),))

    connection = Connection(refuse)

    async def work() -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await connection.call(b"a").read()
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(raised.value.trailing_metadata()) == {"octet-error-bin": b"why"}

    connection.run(work)


def test_both_ends_keep_the_deadline() -> None:
    ended: list[float] = []

    async def handle(raw: bytes, context: Any) -> None:
        assert 1.9 < context.time_remaining() <= 2.0
        try:
            await forever(raw, context)
        finally:
            ended.append(connection.loop.time())

    connection = Connection(handle)

    async def work() -> None:
        began = connection.loop.time()
        assert await code_of(connection.call(b"a", timeout=2.0)) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert connection.loop.time() - began == 2.0
        await asyncio.sleep(0.1)
        assert ended == [began + 2.0]

    connection.run(work)


def test_a_cancel_reaches_the_handler() -> None:
    ended: list[bool] = []

    async def handle(raw: bytes, context: Any) -> None:
        try:
            await forever(raw, context)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    connection = Connection(handle)

    async def work() -> None:
        call = connection.call(b"a")
        assert await call.read() == b"begun"
        assert call.cancel() and not call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        await asyncio.sleep(0.1)
        assert ended == [True]

    connection.run(work)


def test_a_reader_that_does_not_read_blocks_the_writer() -> None:
    written = [0]

    async def handle(_: bytes, context: Any) -> None:
        while written[0] < 8:
            await context.write(bytes(WINDOW_BYTES // 4))
            written[0] += 1

    connection = Connection(handle)

    async def work() -> None:
        call = connection.call(b"a")
        await asyncio.sleep(10.0)
        assert written[0] == 4
        assert len([raw async for raw in call]) == 8

    connection.run(work)


def test_a_killed_process_is_noticed_at_once_and_a_stopped_one_is_not() -> None:
    connection = Connection(forever)

    async def work() -> None:
        call = connection.call(b"a")
        assert await call.read() == b"begun"
        connection.process.stop()
        late = connection.call(b"b", timeout=3.0)
        assert await code_of(late) is grpc.StatusCode.DEADLINE_EXCEEDED
        connection.process.kill()
        connection.link.lose()
        assert await code_of(call) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(connection.call(b"c")) is grpc.StatusCode.UNAVAILABLE

    connection.run(work)


def test_a_cut_link_delays_messages_and_is_given_up_after_the_keepalive() -> None:
    connection = Connection(echo)

    async def work() -> None:
        began = connection.loop.time()
        connection.link.cut(there=False)
        held = connection.channel.stream(METHOD, b"a", wait_for_ready=True)
        await asyncio.sleep(1.0)
        connection.link.mend()
        assert len([raw async for raw in held]) == 3
        assert connection.loop.time() - began < 2.0
        call = connection.call(b"b")
        connection.link.cut()
        assert await code_of(call) is grpc.StatusCode.UNAVAILABLE
        assert connection.loop.time() - began >= KEEPALIVE_SECONDS

    connection.run(work)


def test_wait_for_ready_waits_for_a_connection() -> None:
    connection = Connection(echo)

    async def work() -> None:
        process, port = connection.address.process, connection.address.port
        assert process is not None and port is not None
        connection.address.process = None
        call = connection.call(b"a", wait_for_ready=True)
        assert await code_of(connection.call(b"b")) is grpc.StatusCode.UNAVAILABLE
        await asyncio.sleep(3.0)
        connection.address.listen(process, port)
        assert len([raw async for raw in call]) == 3

    connection.run(work)
