"""Whoever asks a server that stops is told so, and is not cancelled without a word."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from octet.rpc.doorstep import Doorstep, DoorstepInterceptor, begun
from tests.service.harness import run

TOLD = (grpc.StatusCode.UNAVAILABLE, "this server is ending")
NUM_CALLS = 32
GRACE = 10.0


async def _refuse(_request: bytes, context: Any) -> bytes:
    await context.abort(*TOLD)
    return b""


async def serving(ask: Callable[[bytes, Any], Awaitable[bytes]]) -> tuple[Any, Doorstep, str]:
    """The server, what is before its door, and its address."""
    doorstep = Doorstep()
    server = grpc.aio.server(interceptors=(DoorstepInterceptor(doorstep),))
    handlers = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Server", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, doorstep, f"127.0.0.1:{port}"


async def stop(server: Any, doorstep: Doorstep, grace: float = GRACE) -> None:
    async with doorstep.held(grace):
        ending = await begun(server.stop(grace))
    await ending


async def asked_while_nobody_looks(address: str) -> list[Any]:
    """Calls that gRPC has taken from their connection, and that no turn of this loop has seen."""
    channel = grpc.insecure_channel(address)
    ask = channel.unary_unary("/a.Server/Ask")
    first = ask.future(b"", timeout=20)
    await asyncio.to_thread(first.code)
    calls = [ask.future(b"", timeout=20) for _ in range(NUM_CALLS)]
    time.sleep(0.3)  # the loop is to stand still
    return calls


async def ends_of(calls: list[Any]) -> set[tuple[grpc.StatusCode, str]]:
    return {(await asyncio.to_thread(call.code), await asyncio.to_thread(call.details)) for call in calls}


def test_grpc_alone_cancels_whom_it_has_not_handed_over() -> None:
    """Why there is a doorstep. Where this fails, it may no longer be needed."""

    async def story() -> None:
        server, _, address = await serving(_refuse)
        calls = await asked_while_nobody_looks(address)
        await server.stop(GRACE)
        assert (grpc.StatusCode.CANCELLED, "CANCELLED") in await ends_of(calls)

    run(story())


def test_whom_grpc_has_not_handed_over_is_told() -> None:
    async def story() -> None:
        server, doorstep, address = await serving(_refuse)
        calls = await asked_while_nobody_looks(address)
        await stop(server, doorstep)
        assert await ends_of(calls) == {TOLD}

    run(story())


def test_who_asks_again_as_soon_as_he_is_refused_is_never_cancelled() -> None:
    async def story() -> None:
        server, doorstep, address = await serving(_refuse)
        async with grpc.aio.insecure_channel(address) as channel:
            ends: list[list[tuple[grpc.StatusCode, str]]] = [[] for _ in range(NUM_CALLS)]

            async def ask_for_ever(heard: list[tuple[grpc.StatusCode, str]]) -> None:
                while not heard or heard[-1] == TOLD:
                    call = channel.unary_unary("/a.Server/Ask")(b"", timeout=20)
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
                    calls.append(channel.unary_unary("/a.Server/Ask")(b"", timeout=20))
                    await asyncio.sleep(0.01)

            coming = asyncio.create_task(come())
            async with asyncio.timeout(8):
                await stop(server, doorstep)
            coming.cancel()
            assert TOLD in {(await call.code(), await call.details()) for call in calls}

    run(story())


@pytest.mark.parametrize("grace", [0.0, 0.5])
def test_its_grace_is_for_those_who_are_inside(grace: float) -> None:
    async def story() -> None:
        inside = asyncio.Event()

        async def hang(_request: bytes, _context: Any) -> bytes:
            inside.set()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # never

        server, doorstep, address = await serving(hang)
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/a.Server/Ask")(b"", timeout=20)
            await inside.wait()
            began = time.monotonic()
            await stop(server, doorstep, grace)
            assert time.monotonic() - began >= grace
            assert await call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED

    run(story())


def test_who_is_held_goes_on_also_where_the_end_is_given_up() -> None:
    async def story() -> None:
        doorstep = Doorstep()

        async def end() -> None:
            async with doorstep.held(GRACE):
                await asyncio.get_running_loop().create_future()

        ending = asyncio.create_task(end())
        await asyncio.sleep(0)
        coming = asyncio.create_task(doorstep.come())
        await asyncio.sleep(0.05)
        assert not coming.done()
        ending.cancel()
        await coming

    run(story())
