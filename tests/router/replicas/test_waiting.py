"""Requests wait for a replica that is away: long enough, never too long, and not too many of them."""

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.config.ensemble import DispatchConfig
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as wire
from router.dispatch.attempts import replica_lost, set_retry_after
from router.dispatch.replicas.replica import ReplicaSet
from router.dispatch.transport import ReplicaTarget
from simulation.event_loop import HeapLoop, LoopClock
from tests.router.replicas.builders import lane, replica, report
from tests.router.serving.harness import infer_request, patient_dispatch, running_router
from tests.router.serving.spy import running_spy
from tests.router.serving.test_faults import sending

GRAIN = 1e-6
MOST_WAITING = 3
TIMES = st.integers(0, 400).map(lambda tenths: tenths / 10)


@dataclass
class Waiter:
    arrives: float
    seconds: float
    cancelled_after: float | None
    ended: float = math.inf
    found: bool | None = None


waiters = st.lists(st.builds(Waiter, TIMES, TIMES, st.none() | TIMES), max_size=8)


@given(waiters=waiters, changes=st.lists(TIMES, max_size=6, unique=True), closes=st.none() | TIMES)
def test_every_wait_ends_as_soon_as_it_must(waiters: list[Waiter], changes: list[float], closes: float | None) -> None:
    """The replica goes away and comes back at the times in `changes`; at `closes` the router starts to drain."""
    loop = HeapLoop()
    replicas = lane(LoopClock(loop), 1, DispatchConfig(wait_requests=MOST_WAITING))
    (only,) = replicas.replicas.values()
    replicas.replicas_changed()
    most = 0

    async def wait(waiter: Waiter) -> None:
        nonlocal most
        await asyncio.sleep(waiter.arrives)
        began = loop.time()
        try:
            async with asyncio.timeout(waiter.cancelled_after):
                waiter.found = await replicas.wait_usable(waiter.seconds)
        except TimeoutError:
            waiter.found = None
        waiter.ended = loop.time() - start
        most = max(most, replicas.num_waiting)
        assert waiter.ended - waiter.arrives <= waiter.seconds + GRAIN, began

    def change() -> None:
        if only.is_connected:
            only.disconnected("killed")
        else:
            only.health_reported(is_serving=True)
        replicas.replicas_changed()

    async def run() -> None:
        for at in changes:
            loop.call_later(at, change)
        if closes is not None:
            loop.call_later(closes, replicas.stop_waiting)
        async with asyncio.timeout(1000):
            await asyncio.gather(*map(wait, waiters))

    start = loop.time()
    loop.run_until_complete(run())
    loop.close()
    assert most <= MOST_WAITING and replicas.num_waiting == 0
    ordered = sorted(changes)
    for waiter in waiters:
        assert waiter.found is not None or waiter.cancelled_after is not None, "a wait has exactly one end"
        if waiter.found:  # it is never told so while the replica is away
            gone = sum(at <= waiter.ended + GRAIN for at in ordered)
            back = sum(at < waiter.ended - GRAIN for at in ordered)
            assert gone % 2 == 0 or back % 2 == 0
        returns = [at for at in ordered[1::2] if at > waiter.arrives + GRAIN]
        if waiter.found is False and returns and waiter.ended > returns[0] + GRAIN:
            assert replicas.num_waiting == 0 and ordered.index(returns[0]) + 1 < len(ordered), "it went away again"
        if closes is not None:
            assert waiter.ended <= max(closes, waiter.arrives) + GRAIN, "the drain ends every wait"


def test_no_request_waits_beside_too_many_or_for_a_specialist_that_is_long_gone() -> None:
    loop = HeapLoop()
    clock = LoopClock(loop)

    async def run() -> None:
        replicas = ReplicaSet("stl", DispatchConfig(wait_requests=1), clock)
        began = loop.time()
        first = asyncio.ensure_future(replicas.wait_usable(20.0))
        await asyncio.sleep(1.0)
        assert not await replicas.wait_usable(20.0) and loop.time() - began == pytest.approx(1.0)
        assert not await first and loop.time() - began == pytest.approx(20.0)
        await asyncio.sleep(20.0)
        assert not await replicas.wait_usable(20.0) and loop.time() - began == pytest.approx(40.0)

    loop.run_until_complete(run())
    loop.close()


@given(
    away=st.lists(st.floats(0.2, 29.8) | st.floats(30.1, 40.0), min_size=1, max_size=5),
    elapsed=st.floats(0, 60),
    name=st.text(max_size=8),
)
def test_announced_time_is_the_rest_of_a_measured_restart(away: list[float], elapsed: float, name: str) -> None:
    clock = ManualClock()
    replicas = ReplicaSet("stl", DispatchConfig(), clock)
    each = replica(clock)
    replicas.replicas[each.name] = each
    each.load_reported(report(instance="0"))
    for number, seconds in enumerate(away, 1):
        assert replicas.seconds_to_return == 0
        each.disconnected("killed")
        if number == 1:
            assert replicas.seconds_to_return is None, "nothing was measured yet"
        clock.sleep(seconds)
        each.health_reported(is_serving=True)
        each.load_reported(report(instance=str(number)))
    each.disconnected("the network failed")
    clock.sleep(0.1)
    each.health_reported(is_serving=True)
    each.load_reported(report(instance=str(len(away))))
    each.disconnected("killed")
    clock.sleep(elapsed)
    measured = [seconds for seconds in away if seconds < 29.9][-3:]  # a longer absence is an outage
    usual = max(measured, default=None)
    left = replicas.seconds_to_return
    if usual is None:
        assert left is None
        return
    assert left == pytest.approx(max(usual - elapsed, usual / 4)), "a lost connection to the same process is no restart"
    refusal = replica_lost("stl-0", "killed")
    set_retry_after(refusal, name, left)
    assert 0.049 <= refusal.error.retry_after_ms / 1000 - (left or 0) <= 0.31


async def test_request_waits_for_a_restart_and_its_receipt_says_so() -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_spy())
        async with running_router({"writer": [first.address]}, dispatch=patient_dispatch(wait_share=0.9)) as routed:
            replicas = routed.server.fleet.replica_sets["writer"]
            await stack.aclose()
            await routed.until(lambda: not replicas.is_usable)
            asking = [asyncio.create_task(routed.ask(infer_request(timeout_ms=600_000))) for _ in range(3)]
            await routed.until(lambda: replicas.num_waiting == 3)
            async with running_spy(port=first.port) as second:
                answers = await asyncio.gather(*asking)
                assert {each.text for each in answers} == {"x"} and len(second.asked) == 3
                for each in answers:
                    assert each.receipt is not None and each.receipt.timings.waited > 0
                quick = await routed.ask(infer_request())
                assert quick.receipt is not None and not quick.receipt.timings.HasField("waited")
                await routed.until(lambda: any(each.restart_seconds for each in routed.server.fleet.replicas))
                second.behave = sending(hangs=True)
                last = asyncio.create_task(routed.ask(infer_request(timeout_ms=60_000, first_token_timeout_ms=2000)))
                await routed.until(lambda: second.num_live)
            refused = await last
            assert refused.reason in (error_pb2.ERROR_REASON_NO_REPLICA, error_pb2.ERROR_REASON_REPLICA_LOST)
            (measured,) = next(iter(replicas.replicas.values())).restart_seconds
            assert refused.error is not None
            assert measured / 4 <= refused.error.retry_after_ms / 1000 <= measured + 0.31


@pytest.mark.parametrize("how", ["cancelled", "disconnected", "drained"])
async def test_waiting_request_ends_at_once(how: str) -> None:
    async with running_router({"writer": ["127.0.0.1:1"]}, warm=False, dispatch=patient_dispatch()) as routed:
        replicas = routed.server.fleet.replica_sets["writer"]
        asking = asyncio.create_task(routed.ask(infer_request(request_id="mine", timeout_ms=3_600_000)))
        await routed.until(lambda: replicas.num_waiting == 1)
        if how == "disconnected":
            asking.cancel()
        elif how == "drained":
            await routed.server.drain()
        else:
            await routed.call("Cancel", wire.CancelRequest(request_id="mine"), wire.CancelResponse)
        await routed.until(lambda: not len(routed.server.live))
        assert replicas.num_waiting == 0
        if how != "disconnected":
            result = await asking
            expected = grpc.StatusCode.CANCELLED if how == "cancelled" else grpc.StatusCode.UNAVAILABLE
            assert result.code is expected
            assert result.receipt is not None and result.receipt.timings.waited > 0


async def test_hung_replica_is_not_asked_and_requests_wait_for_its_reports() -> None:
    dispatch = DispatchConfig(hang_seconds=1.0, wait_share=0.9)
    async with running_spy() as spy, running_router({"writer": [spy.address]}, dispatch=dispatch) as routed:
        (each,) = routed.server.fleet.replicas
        replicas = routed.server.fleet.replica_sets["writer"]
        spy.reports = False
        await routed.until(lambda: each.is_hung)
        asking = [asyncio.create_task(routed.ask(infer_request(timeout_ms=600_000))) for _ in range(4)]
        await routed.until(lambda: replicas.num_waiting == 4)
        assert not spy.asked
        spy.reports = True
        assert {answer.text for answer in await asyncio.gather(*asking)} == {"x"}


async def test_replica_of_other_weights_ends_no_wait() -> None:
    """The replica of the lane's weights is away, and one of other weights is there: only the former is waited for."""
    replicas = lane(ManualClock(), 1)
    (own,) = replicas.replicas.values()
    other = replica(index=1)
    other.target = ReplicaTarget("0.1", "unix:/run/0-w1.sock", weights=1)
    replicas.replicas["stl-0.1"] = other
    own.disconnected("killed")
    waiting = asyncio.ensure_future(replicas.wait_usable(30, lambda each: each is own))
    for _ in range(3):
        await asyncio.sleep(0)
        replicas.replicas_changed()
    assert not waiting.done() and replicas.num_waiting == 1
    own.health_reported(is_serving=True)
    replicas.replicas_changed()
    assert await waiting and replicas.num_waiting == 0
