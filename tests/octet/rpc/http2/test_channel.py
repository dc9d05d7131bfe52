"""A channel dials when it must, fails at once while it cannot, and leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import grpc
import pytest
from grpc.aio import EOF, AioRpcError, UsageError

from octet.rpc.http2 import dial, frames
from octet.rpc.http2.channel import Channel, Reading
from tests.octet.rpc.http2.peer import scenes
from tests.octet.rpc.http2.servers import Cable, served

READING = Reading(most_message=1 << 20, lookahead=256)


async def told(channel: Channel, **options: float | bool) -> str:
    call = channel.unary_stream("/test.Test/Count")(b"1 1", **options)  # type: ignore[arg-type]
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
    """Somebody who says this to everybody who comes, and no more."""

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


def test_calls_that_come_while_it_dials_wait_for_it_and_share_the_connection() -> None:
    async def story() -> None:
        async with served() as real, Cable(real.address) as cable:
            channel = Channel(cable.address, READING)
            assert cable.num_made == 0, "it dials when it is first used"
            assert await asyncio.gather(*(told(channel) for _ in range(20))) == ["OK"] * 20
            assert cable.num_made == 1
            cable.sever()
            await asyncio.sleep(0.02)
            assert await told(channel) == "OK" and cable.num_made == 2
            await channel.close()

    scenes(story)


def test_while_nobody_is_there_calls_fail_at_once_and_who_waits_is_served_when_somebody_is() -> None:
    async def story() -> None:
        async with served() as real:
            address = real.address
        channel = Channel(address, READING)
        assert await told(channel) == "UNAVAILABLE"
        waits = asyncio.create_task(told(channel, wait_for_ready=True))
        late = asyncio.create_task(told(channel, wait_for_ready=True, timeout=0.05))
        await asyncio.sleep(0)
        began = perf_counter()
        assert [await told(channel) for _ in range(50)] == ["UNAVAILABLE"] * 50
        assert perf_counter() - began < 0.5, "nobody dials for each"
        assert await late == "DEADLINE_EXCEEDED" and not waits.done()
        async with served(address=address):
            assert await waits == "OK" and await told(channel) == "OK"
        await channel.close()

    scenes(story)


def test_without_anybody_who_waits_the_next_call_after_a_pause_tries_again() -> None:
    async def story() -> None:
        async with served() as real:
            address = real.address
        channel = Channel(address, READING)
        assert await told(channel) == "UNAVAILABLE"
        async with served(address=address):
            async with asyncio.timeout(5):
                while await told(channel) != "OK":
                    await asyncio.sleep(0.02)
        await channel.close()

    scenes(story)


@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", frames.settings({}) + frames.goaway(0)],
    ids=["nothing", "another protocol", "a farewell"],
)
def test_who_takes_a_connection_and_does_not_speak_grpc_is_unavailable(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "DIAL_SECONDS", 0.1)

    async def story() -> None:
        async with saying(said) as address:
            channel = Channel(address, READING)
            assert await told(channel) == "UNAVAILABLE"
            await channel.close()

    scenes(story)


@pytest.mark.parametrize("address", ["nobody.invalid:1", "unix:/nowhere/at/all", f"{'a' * 80}.test:1"])
def test_places_that_are_none(address: str) -> None:
    async def story() -> None:
        channel = Channel(address, READING)
        assert await told(channel, timeout=20) == "UNAVAILABLE"
        await channel.close()

    scenes(story)


def test_a_mistake_of_our_own_in_dialling_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def mistaken(*_: object) -> None:
        raise RuntimeError("by mistake")

    monkeypatch.setattr(dial, "_dialled", mistaken)

    async def story() -> None:
        channel = Channel("127.0.0.1:1", READING)
        assert await told(channel) == "UNAVAILABLE"
        assert await told(channel, wait_for_ready=True, timeout=0.2) == "DEADLINE_EXCEEDED"
        await channel.close()

    scenes(story)
    assert "dialling 127.0.0.1:1 failed" in caplog.text


def test_closing_cancels_whoever_waits_wherever_they_wait() -> None:
    async def story() -> None:
        async with served() as real:
            channel = Channel(real.address, READING)
            hanging = channel.unary_stream("/test.Test/Hang")(b"")
            assert await hanging.read() == b"begun"
            reading = asyncio.create_task(hanging.read())
            await asyncio.sleep(0)
            await channel.close()
            with pytest.raises(asyncio.CancelledError):
                await reading
            with pytest.raises(UsageError):
                channel.unary_stream("/test.Test/Hang")(b"")
        nowhere = Channel(real.address, READING)
        waits = asyncio.create_task(told(nowhere, wait_for_ready=True))
        await asyncio.sleep(0.05)
        await nowhere.close()
        assert await waits == "cancelled here"
        dialling = Channel("127.0.0.1:1", READING)
        waits = asyncio.create_task(told(dialling))
        await asyncio.sleep(0)
        await dialling.close()
        assert await waits == "cancelled here"

    scenes(story)


def test_one_answer_is_one() -> None:
    def unreadable(_: bytes) -> None:
        raise ValueError("no")

    async def code(channel: Channel, method: str, ask: bytes, parse: object = None) -> grpc.StatusCode:
        with pytest.raises(AioRpcError) as caught:
            await channel.unary_unary(f"/test.Test/{method}", None, parse)(ask, timeout=10)  # type: ignore[arg-type]
        return caught.value.code()

    async def story() -> None:
        async with served() as real:
            channel = Channel(real.address, READING)
            for method, ask, parse in (("Count", b"0 0", None), ("Count", b"2 2", None), ("Echo", b"", unreadable)):
                assert await code(channel, method, ask, parse) is grpc.StatusCode.INTERNAL
            async with asyncio.timeout(10):
                waiting = asyncio.create_task(_awaited(channel))
                await asyncio.sleep(0.05)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await channel.close()

    async def _awaited(channel: Channel) -> object:
        return await channel.unary_unary("/test.Test/Hang")(b"")

    scenes(story)
