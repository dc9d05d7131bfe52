"""The HTTP/2 client reports the same results as grpcio's client, whatever the server does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc.aio import EOF, AioRpcError

from router.dispatch.http2.call import ReadLimits
from router.dispatch.http2.channel import Http2Channel
from router.dispatch.transport import GrpcChannel
from tests.patience import PATIENCE
from tests.router.http2.peer import run_on_both_loops
from tests.router.http2.servers import Proxy, outcome, served, stream

MOST = 100_000
READING = ReadLimits(max_message_bytes=MOST, lookahead=256)


@asynccontextmanager
async def both(address: str) -> AsyncIterator[tuple[Any, Any]]:
    channels = Http2Channel(address, READING), GrpcChannel(address, READING)
    yield channels
    for channel in channels:
        await channel.close()


STREAMS: dict[str, tuple[str, bytes]] = {
    "nothing": ("Count", b"0 0"),
    "a few": ("Count", b"3 10"),
    "empty ones": ("Blank", b""),
    "larger than any window": ("Count", b"3 80000"),
    "too large": ("Count", f"1 {MOST}".encode()),
    "refused at once": ("Refuse", b"0|8|no room"),
    "refused behind messages": ("Refuse", b"2|14|gone"),
    "refused in other letters": ("Refuse", "0|3|50 % für ümläute\n".encode()),
    "cancelled there": ("Refuse", b"0|1|not wanted"),
    "a mistake there": ("Fail", b""),
    "unknown": ("Nowhere", b""),
}


@pytest.mark.parametrize("name", STREAMS)
def test_stream_ends_like_a_grpc_stream(name: str) -> None:
    method, ask = STREAMS[name]

    async def scenario() -> None:
        async with served() as server, both(server.address) as channels:
            ours, theirs = [await outcome(stream(channel, method, ask)) for channel in channels]
            if name == "refused at once":
                assert ours[3], "metadata must be compared too"
            assert _known(ours) == _known(theirs)

    run_on_both_loops(scenario)


def _known(outcome_of: Any) -> Any:
    """Return the outcome, without details that the client adds. The two clients may word such details differently."""
    if len(outcome_of) > 2 and outcome_of[1] is grpc.StatusCode.RESOURCE_EXHAUSTED and not outcome_of[3]:
        return outcome_of[:2]
    return outcome_of


def test_unary_call_ends_like_a_grpc_call() -> None:
    async def answered(channel: Any, method: str, ask: bytes, **options: Any) -> object:
        try:
            return await channel.call(f"/test.Test/{method}", ask, **options)
        except AioRpcError as error:
            return error.code()

    async def scenario() -> None:
        said = (("x-text", "plain ~"), ("x-raw-bin", b"\x00\x01\xfe"), ("x-raw-bin", b""))
        async with served() as server, both(server.address) as channels:
            for method, ask, options in (
                ("Echo", b"", {}),
                ("Echo", b"y" * (MOST - 10), {}),
                ("Echo", b"y" * (MOST + 1), {}),
                ("Said", b"", {"metadata": said, "timeout": 50}),
                ("Said", b"", {"metadata": said}),
                ("Nowhere", b"", {}),
            ):
                ours, theirs = [await answered(channel, method, ask, **options) for channel in channels]
                assert ours == theirs, method

    run_on_both_loops(scenario)


def test_deadline_cancellation_and_lost_connection_equal_grpc() -> None:
    async def late(channel: Any, _: Proxy) -> object:
        await channel.call("/test.Test/Echo", b"")  # The first call opens the connection.
        return (await outcome(stream(channel, "Hang", b"", timeout=0.5)))[:2]

    async def cancelled(channel: Any, _: Proxy) -> object:
        call = stream(channel, "Hang", b"")
        await call.read()
        asyncio.get_running_loop().call_later(0.01, call.cancel)
        outcome_of = await outcome(call)
        return outcome_of, call.cancel(), await outcome(call)

    async def lost(channel: Any, proxy: Proxy) -> object:
        call = stream(channel, "Hang", b"")
        await call.read()
        proxy.sever()
        return (await outcome(call))[1]

    async def refused(channel: Any, proxy: Proxy) -> object:
        proxy.cut()
        await asyncio.sleep(0.01)
        return [(await outcome(stream(channel, "Hang", b"")))[1] for _ in range(3)]

    async def scenario() -> None:
        async with served() as server:
            outcome_of = []
            for which in range(2):
                async with Proxy(server.address) as proxy, both(proxy.address) as channels:
                    outcome_of.append([await ask(channels[which], proxy) for ask in (late, cancelled, lost, refused)])
            assert outcome_of[0] == outcome_of[1]
            unavailable = grpc.StatusCode.UNAVAILABLE
            assert outcome_of[0][2:] == [unavailable, [unavailable] * 3]

    run_on_both_loops(scenario)


def test_draining_server_finishes_calls_and_the_next_call_uses_another_connection() -> None:
    async def scenario() -> None:
        async with served() as server:
            ours = Http2Channel(server.address, READING)
            begun = stream(ours, "Count", b"1 1")
            hanging = stream(ours, "Hang", b"", timeout=PATIENCE)
            assert await hanging.read() == b"begun"
            stopping = asyncio.create_task(server.server.stop(1.0))
            assert (await outcome(begun))[0] == [b"00000x"]
            outcome_of = await outcome(hanging)
            assert outcome_of[1] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            await stopping
            assert (await outcome(stream(ours, "Echo", b"")))[1] is grpc.StatusCode.UNAVAILABLE
            async with served(address=server.address):
                call = stream(ours, "Count", b"1 1", wait_for_ready=True)
                assert (await outcome(call))[1] == "OK"
            await ours.close()

    run_on_both_loops(scenario)


def test_large_messages_pass_both_ways_beside_small_ones() -> None:
    async def scenario() -> None:
        async with served() as server:
            ours = Http2Channel(server.address, ReadLimits(32 << 20, 256))
            large = bytes(range(256)) * (9 << 12)
            answers = await asyncio.gather(
                *(ours.call("/test.Test/Echo", each) for each in (large, b"small", large[::-1]))
            )
            assert list(answers) == [large, b"small", large[::-1]]
            await ours.close()

    run_on_both_loops(scenario)


def test_many_streams_with_slow_readers_lose_no_message() -> None:
    async def read(channel: Http2Channel, number: int) -> None:
        call = stream(channel, "Count", b"%d %d" % (60, number * 7))
        for index in range(60):
            raw = await call.read()
            assert raw == b"%05d" % index + b"x" * (number * 7)
            if (index + number) % 7 == 0:
                await asyncio.sleep(0.001)
        assert await call.read() is EOF

    async def scenario() -> None:
        async with served(most_streams=20) as server:
            ours = Http2Channel(server.address, READING)
            await asyncio.gather(*(read(ours, number) for number in range(48)))
            await ours.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize("where", ["unix:{}/socket", "localhost:{}", "[::1]:{}"])
def test_every_form_of_address_is_called(where: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        is_path = where.startswith("unix:")
        async with served(address=where.format(tmp_path if is_path else 0)) as server:
            port = server.address.rpartition(":")[2]
            ours = Http2Channel(server.address if is_path else where.format(port), READING)
            assert await ours.call("/test.Test/Echo", b"here", timeout=PATIENCE) == b"here"
            await ours.close()

    run_on_both_loops(scenario)


def test_a_name_with_one_unreachable_address_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with served() as server:
            port = int(server.address.rpartition(":")[2])

            async def found(*_: object, **__: object) -> list[Any]:
                return [(None, None, None, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
            ours = Http2Channel(f"replica.test:{port}", READING)
            assert await ours.call("/test.Test/Echo", b"here", timeout=PATIENCE) == b"here"
            await ours.close()

    run_on_both_loops(scenario)


@pytest.mark.slow
def test_a_server_that_is_slow_to_exchange_settings_is_connected() -> None:
    """On a busy machine, the exchange of HTTP/2 settings can take more than half a second."""

    async def scenario() -> None:
        async with served() as server, Proxy(server.address, delay=0.6) as proxy, both(proxy.address) as channels:
            for channel in channels:
                assert await channel.call("/test.Test/Echo", b"y") == b"y"

    run_on_both_loops(scenario)
