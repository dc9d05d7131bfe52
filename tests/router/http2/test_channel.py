"""A channel connects on demand, fails immediately while the server is down, and leaves nothing open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc.aio import EOF, AioRpcError, UsageError

from router.dispatch.http2 import channel as dial
from router.dispatch.http2 import frames
from router.dispatch.http2.call import ReadLimits
from router.dispatch.http2.channel import Http2Channel
from router.dispatch.http2.connection import Http2Connection
from tests.patience import PATIENCE
from tests.router.http2.peer import run_on_both_loops
from tests.router.http2.servers import Proxy, served

READING = ReadLimits(max_message_bytes=1 << 20, lookahead=256)


async def outcome_of(channel: Http2Channel, **options: float | bool) -> str:
    call = channel.stream("/test.Test/Count", b"1 1", **options)  # type: ignore[arg-type]
    try:
        while await call.read() is not EOF:
            pass
    except AioRpcError as error:
        return str(error.code().name)
    except asyncio.CancelledError:
        return "cancelled here"
    return "OK"


@asynccontextmanager
async def saying(raw: bytes) -> AsyncIterator[str]:
    """Run a server that sends these bytes to every client and then stays silent. Yield its address."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        try:
            while await reader.read(1000):
                pass
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await asyncio.sleep(0.02)


def test_calls_during_a_dial_wait_and_share_the_connection() -> None:
    async def scenario() -> None:
        async with served() as server, Proxy(server.address) as proxy:
            channel = Http2Channel(proxy.address, READING)
            assert proxy.num_made == 0, "the channel must connect at its first use"
            assert await asyncio.gather(*(outcome_of(channel) for _ in range(20))) == ["OK"] * 20
            assert proxy.num_made == 1
            proxy.sever()
            while channel._connection is not None:
                await asyncio.sleep(0.01)
            assert await outcome_of(channel) == "OK" and proxy.num_made == 2
            await channel.close()

    run_on_both_loops(scenario)


def test_calls_to_a_stopped_server_fail_at_once_and_waiting_calls_are_served_later() -> None:
    async def scenario() -> None:
        async with served() as server:
            address = server.address
        channel = Http2Channel(address, READING)
        assert await outcome_of(channel) == "UNAVAILABLE"
        waits = asyncio.create_task(outcome_of(channel, wait_for_ready=True))
        late = asyncio.create_task(outcome_of(channel, wait_for_ready=True, timeout=0.05))
        await asyncio.sleep(0)
        dial, num_dials = channel._connect_any, 0

        async def count_dials() -> Http2Connection:
            nonlocal num_dials
            num_dials += 1
            return await dial()

        channel._connect_any = count_dials  # type: ignore[method-assign]
        assert [await outcome_of(channel) for _ in range(50)] == ["UNAVAILABLE"] * 50
        assert num_dials < 50, "not every failing call may try to connect"
        assert await late == "DEADLINE_EXCEEDED" and not waits.done()
        async with served(address=address), asyncio.timeout(PATIENCE):
            assert await waits == "OK" and await outcome_of(channel) == "OK"
        await channel.close()

    run_on_both_loops(scenario)


def test_next_call_after_a_pause_dials_again() -> None:
    async def scenario() -> None:
        async with served() as server:
            address = server.address
        channel = Http2Channel(address, READING)
        assert await outcome_of(channel) == "UNAVAILABLE"
        async with served(address=address):
            async with asyncio.timeout(PATIENCE):
                while await outcome_of(channel) != "OK":
                    await asyncio.sleep(0.02)
        await channel.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", frames.settings({}) + frames.goaway(0)],
    ids=["nothing", "another protocol", "a farewell"],
)
def test_server_that_does_not_speak_grpc_is_unavailable(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "DIAL_SECONDS", 0.1)

    async def scenario() -> None:
        async with saying(said) as address:
            channel = Http2Channel(address, READING)
            assert await outcome_of(channel) == "UNAVAILABLE"
            await channel.close()

    run_on_both_loops(scenario)


@pytest.mark.parametrize("address", ["absent.invalid:1", "unix:/nowhere/at/all", f"{'a' * 80}.test:1"])
def test_unreachable_addresses_are_unavailable(address: str) -> None:
    async def scenario() -> None:
        channel = Http2Channel(address, READING)
        assert await outcome_of(channel, timeout=PATIENCE) == "UNAVAILABLE"
        await channel.close()

    run_on_both_loops(scenario)


def test_internal_error_while_dialling_fails_waiting_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken(*_: object) -> None:
        raise RuntimeError("by mistake")

    monkeypatch.setattr(Http2Channel, "_connect", mistaken)

    async def scenario() -> None:
        channel = Http2Channel("127.0.0.1:1", READING)
        assert await outcome_of(channel) == "UNAVAILABLE"
        assert await outcome_of(channel, wait_for_ready=True, timeout=0.2) == "DEADLINE_EXCEEDED"
        await channel.close()

    run_on_both_loops(scenario)
    assert "dialling 127.0.0.1:1 failed" in caplog.text


def test_closing_cancels_every_waiting_call() -> None:
    async def scenario() -> None:
        async with served() as server:
            channel = Http2Channel(server.address, READING)
            hanging = channel.stream("/test.Test/Hang", b"")
            assert await hanging.read() == b"begun"
            reading = asyncio.create_task(hanging.read())
            await asyncio.sleep(0)
            await channel.close()
            with pytest.raises(asyncio.CancelledError):
                await reading
            with pytest.raises(UsageError):
                channel.stream("/test.Test/Hang", b"")
        nowhere = Http2Channel(server.address, READING)
        waits = asyncio.create_task(outcome_of(nowhere, wait_for_ready=True))
        await asyncio.sleep(0.05)
        await nowhere.close()
        assert await waits == "cancelled here"
        dialling = Http2Channel("127.0.0.1:1", READING)
        waits = asyncio.create_task(outcome_of(dialling))
        await asyncio.sleep(0)
        await dialling.close()
        assert await waits == "cancelled here"

    run_on_both_loops(scenario)


def test_unary_call_accepts_exactly_one_answer() -> None:
    async def code(channel: Http2Channel, method: str, ask: bytes) -> grpc.StatusCode:
        with pytest.raises(AioRpcError) as caught:
            await channel.call(f"/test.Test/{method}", ask, timeout=PATIENCE)
        return caught.value.code()

    async def scenario() -> None:
        async with served() as server:
            channel = Http2Channel(server.address, READING)
            for ask in (b"0 0", b"2 2"):
                assert await code(channel, "Count", ask) is grpc.StatusCode.INTERNAL
            async with asyncio.timeout(PATIENCE):
                waiting = asyncio.create_task(_awaited(channel))
                await asyncio.sleep(0.05)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await channel.close()

    async def _awaited(channel: Http2Channel) -> object:
        return await channel.call("/test.Test/Hang", b"")

    run_on_both_loops(scenario)
