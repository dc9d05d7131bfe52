"""Whoever asks a server that stops is told so, and is not cancelled without a word."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from octet.rpc import doorstep as doorstep_module
from octet.rpc.doorstep import Doorstep, DoorstepInterceptor, begun
from tests.octet.rpc.unseen import NUM_CALLS, asked_unseen, codes_of, connected, details_of
from tests.service.harness import run

ASK = "/a.Server/Ask"
TOLD = (grpc.StatusCode.UNAVAILABLE, "this server is ending")
GRACE = 10.0


async def _refuse(_request: bytes, context: Any) -> bytes:
    await context.abort(*TOLD)
    return b""


async def serving(ask: Callable[[bytes, Any], Awaitable[bytes]], also: str | None = None) -> tuple[Any, Doorstep, str]:
    """The server, what is before its door, and its address. By another name, `also`, it can be asked, too."""
    doorstep = Doorstep()
    server = grpc.aio.server(interceptors=(DoorstepInterceptor(doorstep),))
    handlers = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
    names = ["a.Server", *([also] if also else [])]
    server.add_generic_rpc_handlers(tuple(grpc.method_handlers_generic_handler(name, handlers) for name in names))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, doorstep, f"127.0.0.1:{port}"


async def stop(server: Any, doorstep: Doorstep, grace: float = GRACE) -> None:
    async with doorstep.held():
        ending = await begun(server.stop(grace))
    await ending


def test_grpc_alone_cancels_whom_it_has_not_handed_over() -> None:
    """Why there is a doorstep. Where this fails, it may no longer be needed."""

    async def story() -> bool:
        server, _, address = await serving(_refuse)
        async with connected(address, ASK, b"") as ask:
            calls = asked_unseen(ask)
            await server.stop(GRACE)
            return grpc.StatusCode.CANCELLED in await codes_of(calls)

    assert any(run(story()) for _ in range(5)), "on a busy machine they may not have come so far"


def test_whom_grpc_has_not_handed_over_is_told() -> None:
    async def story() -> None:
        server, doorstep, address = await serving(_refuse)
        async with connected(address, ASK, b"") as ask:
            calls = asked_unseen(ask)
            await stop(server, doorstep)
            assert await codes_of(calls) == {TOLD[0]} and TOLD[1] in await details_of(calls)

    run(story())


def test_a_loop_that_stands_still_meanwhile_is_not_taken_for_quiet() -> None:
    """Found in review: it was, and all but one were cancelled."""

    async def story() -> None:
        server, doorstep, address = await serving(_refuse)
        async with connected(address, ASK, b"") as ask:
            stopping = asyncio.create_task(stop(server, doorstep))
            await asyncio.sleep(0.05)
            calls = asked_unseen(ask)
            await stopping
            assert await codes_of(calls) == {TOLD[0]} and TOLD[1] in await details_of(calls)

    run(story())


def test_who_asks_again_as_soon_as_he_is_refused_is_never_cancelled() -> None:
    async def story() -> None:
        server, doorstep, address = await serving(_refuse)
        async with grpc.aio.insecure_channel(address) as channel:
            ends: list[list[tuple[grpc.StatusCode, str]]] = [[] for _ in range(NUM_CALLS)]

            async def ask_for_ever(heard: list[tuple[grpc.StatusCode, str]]) -> None:
                while not heard or heard[-1] == TOLD:
                    call = channel.unary_unary(ASK)(b"", timeout=20)
                    heard.append((await call.code(), await call.details()))

            asking = [asyncio.create_task(ask_for_ever(heard)) for heard in ends]
            await asyncio.sleep(0.2)
            await stop(server, doorstep)
            await asyncio.gather(*asking)
            assert all(len(heard) > 1 for heard in ends), "refused, and then there was nobody"
            assert {code for heard in ends for code, _ in heard} == {grpc.StatusCode.UNAVAILABLE}

    run(story())


def test_who_never_stops_coming_holds_it_up_for_a_while_only() -> None:
    async def story() -> None:
        server, doorstep, address = await serving(_refuse)
        async with grpc.aio.insecure_channel(address) as channel:
            calls = []

            async def come() -> None:
                while True:
                    calls.append(channel.unary_unary(ASK)(b"", timeout=20))
                    await asyncio.sleep(0.01)

            coming = asyncio.create_task(come())
            async with asyncio.timeout(15):
                await stop(server, doorstep)
            coming.cancel()
            ends = Counter([(await call.code(), await call.details()) for call in calls])
            cancelled = sum(number for (code, _), number in ends.items() if code is grpc.StatusCode.CANCELLED)
            assert cancelled <= ends[TOLD] / 10, ends

    run(story())


def test_a_loop_that_hardly_turns_holds_it_up_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorstep_module, "_LONGEST_SECONDS", 0.5)

    async def story() -> None:
        async def stand_still() -> None:
            while True:
                time.sleep(0.3)
                await asyncio.sleep(0)

        standing = asyncio.create_task(stand_still())
        began = time.monotonic()
        await Doorstep().still()
        assert time.monotonic() - began >= 0.5, "that it stood still is not taken for quiet"
        assert time.monotonic() - began < 2.5, "a dozen turns that count would have taken 3.6"
        standing.cancel()

    run(story())


def test_who_asks_how_the_server_is_passes_while_others_are_held() -> None:
    async def story() -> None:
        async def answer(_request: bytes, _context: Any) -> bytes:
            return b"well"

        server, doorstep, address = await serving(answer, also="grpc.health.v1.Health")
        async with grpc.aio.insecure_channel(address) as channel, doorstep.held():
            held = channel.unary_unary(ASK)(b"", timeout=60)
            async with asyncio.timeout(30):
                while not doorstep.num_held:
                    await asyncio.sleep(0.01)
                assert await channel.unary_unary("/grpc.health.v1.Health/Ask")(b"") == b"well"
            assert not held.done()
        await server.stop(GRACE)

    run(story())


def test_its_grace_is_for_those_who_are_inside() -> None:
    async def story() -> None:
        inside = asyncio.Event()

        async def hang(_request: bytes, _context: Any) -> bytes:
            inside.set()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # never

        server, doorstep, address = await serving(hang)
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(ASK)(b"", timeout=30)
            await inside.wait()
            began = time.monotonic()
            await stop(server, doorstep, 0.5)
            assert 0.7 <= time.monotonic() - began < 10, "a quarter of a second of quiet, and then its grace"
            assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    run(story())


def test_who_is_held_goes_on_also_where_the_end_is_given_up() -> None:
    async def story() -> None:
        doorstep = Doorstep()

        async def end() -> None:
            async with doorstep.held():
                await asyncio.get_running_loop().create_future()

        ending = asyncio.create_task(end())
        await asyncio.sleep(0)
        coming = asyncio.create_task(doorstep.come())
        await asyncio.sleep(0.05)
        assert not coming.done() and doorstep.num_held == 1
        ending.cancel()
        await coming
        assert doorstep.num_held == 0

    run(story())


def test_who_leaves_while_he_is_held_is_counted_no_more() -> None:
    async def story() -> None:
        doorstep = Doorstep()
        async with doorstep.held():
            coming = asyncio.create_task(doorstep.come())
            await asyncio.sleep(0)
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            assert doorstep.num_held == 0

    run(story())
