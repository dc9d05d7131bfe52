"""Calls to a stopping server get a status with a reason instead of an unexplained cancellation."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from octet.rpc import drain_gate
from octet.rpc.drain_gate import DrainGate, DrainGateInterceptor, begin_shutdown
from tests.octet.rpc.pending_calls import NUM_CALLS, codes_of, connected, details_of, send_pending_calls
from tests.patience import PATIENCE
from tests.specialist.server.harness import run

ASK = "/a.Server/Ask"
DRAINING = (grpc.StatusCode.UNAVAILABLE, "this server is ending")
GRACE = 10.0


async def _refuse(_request: bytes, context: Any) -> bytes:
    await context.abort(*DRAINING)
    return b""


async def serving(ask: Callable[[bytes, Any], Awaitable[bytes]], also: str | None = None) -> tuple[Any, DrainGate, str]:
    """Return the server, its drain gate and its address. `also` names a second service."""
    gate = DrainGate()
    server = grpc.aio.server(interceptors=(DrainGateInterceptor(gate),))
    handlers = {"Ask": grpc.unary_unary_rpc_method_handler(ask)}
    names = ["a.Server", *([also] if also else [])]
    server.add_generic_rpc_handlers(tuple(grpc.method_handlers_generic_handler(name, handlers) for name in names))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, gate, f"127.0.0.1:{port}"


async def stop(server: Any, gate: DrainGate, grace: float = GRACE) -> None:
    async with gate.hold():
        ending = await begin_shutdown(server.stop(grace))
    await ending


def test_grpc_alone_cancels_calls_it_has_not_handed_over() -> None:
    """Control: this is why the drain gate exists. If this test fails, the gate may no longer be needed."""

    async def scenario() -> bool:
        server, _, address = await serving(_refuse)
        async with connected(address, ASK, b"") as ask:
            calls = send_pending_calls(ask)
            await server.stop(GRACE)
            return grpc.StatusCode.CANCELLED in await codes_of(calls)

    assert any(run(scenario()) for _ in range(5)), "gRPC handed over all calls in five attempts"


async def test_calls_not_handed_over_get_a_status() -> None:
    server, gate, address = await serving(_refuse)
    async with connected(address, ASK, b"") as ask:
        calls = send_pending_calls(ask)
        await stop(server, gate)
        assert await codes_of(calls) == {DRAINING[0]} and DRAINING[1] in await details_of(calls)


async def test_blocked_loop_is_not_taken_for_quiet() -> None:
    """Regression test: the gate mistook a blocked event loop for a lack of new calls, so all calls but one were
    cancelled."""
    server, gate, address = await serving(_refuse)
    async with connected(address, ASK, b"") as ask:
        stopping = asyncio.create_task(stop(server, gate))
        await asyncio.sleep(0.05)
        calls = send_pending_calls(ask)
        await stopping
        assert await codes_of(calls) == {DRAINING[0]} and DRAINING[1] in await details_of(calls)


async def test_immediate_retries_are_never_cancelled() -> None:
    server, gate, address = await serving(_refuse)
    async with grpc.aio.insecure_channel(address) as channel:
        ends: list[list[tuple[grpc.StatusCode, str]]] = [[] for _ in range(NUM_CALLS)]

        async def ask_for_ever(answers: list[tuple[grpc.StatusCode, str]]) -> None:
            while not answers or answers[-1] == DRAINING:
                call = channel.unary_unary(ASK)(b"", timeout=PATIENCE)
                answers.append((await call.code(), await call.details()))

        asking = [asyncio.create_task(ask_for_ever(answers)) for answers in ends]
        while not all(ends):
            await asyncio.sleep(0.01)
        await stop(server, gate)
        await asyncio.gather(*asking)
        assert all(len(answers) > 1 for answers in ends), "each caller must be refused, and find the server gone later"
        assert {code for answers in ends for code, _ in answers} == {grpc.StatusCode.UNAVAILABLE}


async def test_constant_arrivals_delay_the_shutdown_for_a_limited_time() -> None:
    server, gate, address = await serving(_refuse)
    async with grpc.aio.insecure_channel(address) as channel:
        calls = []

        async def come() -> None:
            while True:
                calls.append(channel.unary_unary(ASK)(b"", timeout=PATIENCE))
                await asyncio.sleep(0.01)

        coming = asyncio.create_task(come())
        async with asyncio.timeout(PATIENCE):
            await stop(server, gate)
        coming.cancel()
        ends = Counter([(await call.code(), await call.details()) for call in calls])
        cancelled = sum(number for (code, _), number in ends.items() if code is grpc.StatusCode.CANCELLED)
        assert cancelled <= ends[DRAINING] / 10, ends


async def test_slow_loop_delays_the_shutdown_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_gate, "_MAX_WALL_SECONDS", 0.5)

    num_turns = 0

    async def stand_still() -> None:
        nonlocal num_turns
        while True:
            time.sleep(0.3)
            num_turns += 1
            await asyncio.sleep(0)

    standing = asyncio.create_task(stand_still())
    began = time.monotonic()
    await DrainGate().wait_until_quiet()
    assert time.monotonic() - began >= 0.5, "a blocked loop must not be taken for a quiet one"
    assert num_turns < 12, "the wait must not count loop iterations instead of time"
    standing.cancel()


async def test_health_checks_pass_while_calls_are_held() -> None:
    async def answer(_request: bytes, _context: Any) -> bytes:
        return b"well"

    server, gate, address = await serving(answer, also="grpc.health.v1.Health")
    async with grpc.aio.insecure_channel(address) as channel, gate.hold():
        held = channel.unary_unary(ASK)(b"", timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while not gate.num_held:
                await asyncio.sleep(0.01)
            assert await channel.unary_unary("/grpc.health.v1.Health/Ask")(b"") == b"well"
        assert not held.done()
    await server.stop(GRACE)


async def test_grace_period_applies_to_running_calls() -> None:
    inside = asyncio.Event()

    async def hang(_request: bytes, _context: Any) -> bytes:
        inside.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # never

    server, gate, address = await serving(hang)
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(ASK)(b"", timeout=PATIENCE)
        await inside.wait()
        began = time.monotonic()
        await stop(server, gate, 0.5)
        assert time.monotonic() - began >= 0.7, (
            "the shutdown must take the quiet period of a quarter of a second and the grace period"
        )
        assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_held_calls_continue_if_the_shutdown_is_abandoned() -> None:
    gate = DrainGate()

    async def end() -> None:
        async with gate.hold():
            await asyncio.get_running_loop().create_future()

    ending = asyncio.create_task(end())
    await asyncio.sleep(0)
    coming = asyncio.create_task(gate.enter())
    await asyncio.sleep(0.05)
    assert not coming.done() and gate.num_held == 1
    ending.cancel()
    await coming
    assert gate.num_held == 0


async def test_cancelled_held_call_is_not_counted() -> None:
    gate = DrainGate()
    async with gate.hold():
        coming = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        assert gate.num_held == 0
