"""The caller's deadline, priority, trace, session and cancellation reach the replica."""

import asyncio
import re
import time
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import grpc
import pytest

from octet.config.ensemble import RouterConfig
from octet.rpc.handlers import Context
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import inference_pb2 as wire
from router import server
from router.dispatch import dispatcher
from router.dispatch.attempts import DEADLINE_SLACK
from router.dispatch.replicas import fleet
from router.routing.validation import MAX_TIMEOUT_MS
from specialist.engines.sim.engine import CostModel
from tests.patience import PATIENCE
from tests.router.serving.harness import infer_request, patient_dispatch, running_router
from tests.router.serving.spy import ACCEPTED, hang, running_spy
from tests.specialist.server.harness import running_replica, serving_simulated, sim

TRACE = "0af7651916cd43dd8448eb211c80319c"
STEADY = CostModel(0.0, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0)
"""Costs of 20 ms per step."""


async def test_trace_priority_and_the_request_itself_are_passed_on() -> None:
    async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
        header = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")
        result = await routed.ask(infer_request("why?", request_id="r", priority=8, seed=3), metadata=(header,))
        await routed.ask(infer_request())
        first, second = spy.metadata
        found = re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", first["traceparent"])
        assert found is not None and found[1] != "b7ad6b7169203331", "the span must be the router's own"
        assert TRACE not in second["traceparent"]
        assert result.receipt is not None and result.receipt.trace_id == TRACE
        asked = spy.asked[0]
        assert (asked.request_id, asked.priority, asked.seed) == ("r", 8, 3)
        assert [(turn.role, turn.content) for turn in asked.chat.messages] == [("user", "why?")]


async def test_trace_state_is_passed_on_only_with_a_valid_trace() -> None:
    async with running_spy() as spy, running_router({"writer": [spy.address]}) as routed:
        parent = ("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")
        state = (("tracestate", "vendor=1,other@place=two"), ("tracestate", "third=3"))
        for headers in ((parent, *state), (("traceparent", "nonsense"), *state), state, (parent,)):
            await routed.ask(infer_request(), metadata=headers)
        assert spy.metadata[0]["tracestate"] == "vendor=1,other@place=two,third=3"
        assert not any("tracestate" in each for each in spy.metadata[1:])


class AdvancedClock:
    """The system clock, which a test can advance."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AdvancedClock:
    """Return the clock of all routers that the test starts."""
    clock = AdvancedClock()
    monkeypatch.setattr(server, "SystemClock", lambda: clock)
    return clock


async def test_the_earlier_deadline_is_enforced_for_a_hung_replica(clock: AdvancedClock) -> None:
    async with running_spy(hang) as spy, running_router({"writer": [spy.address]}) as routed:
        asking = asyncio.create_task(routed.ask(infer_request(timeout_ms=60_000), timeout=600))
        await routed.until(lambda: spy.num_live == 1)
        clock.ahead += 60
        result = await asking
        assert (result.code, result.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, error_pb2.ERROR_REASON_DEADLINE)
        assert result.receipt is not None and len(result.receipt.attempts) == 1
        assert result.receipt.timings.total >= 60, "no request ends before its deadline"
        assert 1000 < spy.asked[0].timeout_ms <= 60_000
        late = routed.generate(infer_request(request_id="late", timeout_ms=3_600_000), timeout=PATIENCE)
        await routed.until(lambda: spy.num_live == 1)
        assert 1000 < spy.asked[1].timeout_ms <= 1.01 * 1000 * PATIENCE  # gRPC rounds the timeout of a call up.
        clock.ahead += PATIENCE
        late.cancel()
        await routed.until(lambda: spy.num_live == 0)
        await routed.idle()
        kept = await routed.call("GetReceipt", wire.GetReceiptRequest(request_id="late"), wire.Receipt)
        assert kept.error.reason == error_pb2.ERROR_REASON_DEADLINE
        assert [each.reason for each in kept.attempts] == [error_pb2.ERROR_REASON_DEADLINE]


async def test_the_first_token_deadline_ends_a_request(clock: AdvancedClock) -> None:
    async with running_spy(hang) as spy, running_router({"writer": [spy.address]}) as routed:
        request = infer_request(first_token_timeout_ms=60_000, timeout_ms=600_000)
        asking = asyncio.create_task(routed.ask(request))
        await routed.until(lambda: spy.num_live == 1)
        clock.ahead += 60
        result = await asking
        assert result.receipt is not None and result.receipt.timings.total >= 60
        assert (result.code, result.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, error_pb2.ERROR_REASON_DEADLINE)
        assert result.error is not None and result.error.field == "first_token_timeout_ms"
        assert 1000 < spy.asked[0].first_token_timeout_ms <= 60_000 and spy.asked[0].timeout_ms > 500_000
        await routed.until(lambda: spy.num_live == 0)
        await routed.idle()


async def test_the_first_token_deadline_does_not_end_a_started_answer() -> None:
    async with running_replica(sim(STEADY)) as served, running_router({"writer": [served.address]}) as routed:
        result = await routed.ask(infer_request(first_token_timeout_ms=2000, max_tokens=150, ignore_eos=True))
        assert result.code is grpc.StatusCode.OK and len(result.tokens) == 150
        assert result.receipt is not None and result.receipt.timings.total > 2 + 2 * DEADLINE_SLACK


async def test_wait_for_a_replica_ends_at_the_first_token_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait itself must end at the deadline. The watchdog would end the request only later."""
    monkeypatch.setattr(fleet, "DEADLINE_SLACK", PATIENCE)
    replica = AsyncExitStack()
    async with (
        replica,
        running_router(
            {"writer": [(await replica.enter_async_context(running_spy())).address]},
            dispatch=patient_dispatch(wait_share=1.0),
        ) as routed,
    ):
        await replica.aclose()
        lane = routed.server.fleet.replica_sets["writer"]
        await routed.until(lambda: not lane.is_usable)
        began = time.monotonic()
        result = await routed.ask(infer_request(first_token_timeout_ms=200, timeout_ms=600_000))
        assert 0.15 < time.monotonic() - began < PATIENCE
        assert result.reason == error_pb2.ERROR_REASON_DEADLINE
        assert result.error is not None and result.error.field == "first_token_timeout_ms"


async def test_an_answer_cut_by_its_deadline_reports_its_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dispatcher, fleet):
        monkeypatch.setattr(module, "DEADLINE_SLACK", 60.0)  # A busy machine may need longer to report the usage.
    async with running_replica(sim(STEADY)) as served, running_router({"writer": [served.address]}) as routed:
        # These options make the length unpredictable.
        might_end: dict[str, Any] = {"ignore_eos": True, "stop": ["not a word of it"]}
        result = await routed.ask(infer_request(timeout_ms=2000, max_tokens=400, **might_end))
        assert result.reason == error_pb2.ERROR_REASON_DEADLINE
        assert result.receipt is not None and result.receipt.usage.completion_tokens == len(result.tokens) > 0


async def test_a_callers_cancellation_reaches_the_replica() -> None:
    async with running_spy(hang) as spy, running_router({"writer": [spy.address]}) as routed:
        for request in (infer_request(), infer_request()):
            call = routed.generate(request)
            await routed.until(lambda: spy.num_live == 1)
            call.cancel()
            await routed.until(lambda: spy.num_live == 0)
        call = routed.generate(infer_request(request_id="gone"), timeout=20)
        await routed.until(lambda: spy.num_live == 1)
        call.cancel()
        await routed.until(lambda: spy.num_live == 0)
        await routed.idle()
        kept = await routed.call("GetReceipt", wire.GetReceiptRequest(request_id="gone"), wire.Receipt)
        assert kept.error.reason == error_pb2.ERROR_REASON_CANCELLED
        infer = asyncio.create_task(routed.call("Infer", infer_request(), wire.InferResponse))
        await routed.until(lambda: spy.num_live == 1)
        infer.cancel()
        await routed.until(lambda: spy.num_live == 0)
        await routed.idle()


@pytest.mark.parametrize("size", [300, pytest.param(1000, marks=pytest.mark.slow)])
async def test_after_a_storm_of_cancellations_every_count_is_zero_and_every_block_free(size: int) -> None:
    """The engines step while requests are cancelled, but no answer ends: on a slow machine, the first answers would end
    before the last requests arrive."""
    limits: dict[str, Any] = {"max_waiting": 600, "max_running": 8}
    async with (
        serving_simulated(STEADY, **limits) as (one, first),
        serving_simulated(STEADY, **limits) as (two, second),
    ):
        first.pause()
        second.pause()
        router = RouterConfig(max_inflight=1024)
        async with running_router({"writer": [one.address, two.address]}, router=router) as routed:
            patient: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True, "timeout_ms": MAX_TIMEOUT_MS}
            calls = [routed.generate(infer_request(f"{n}", **patient)) for n in range(size)]
            ended: list[Any] = []

            def have_all_begun() -> bool:
                ended[:] = [call for call in calls if call.done()]
                return len(ended) > 0 or one.server.handler.num_live + two.server.handler.num_live == size

            await routed.until(have_all_begun)
            assert not ended, [await call.details() for call in ended]
            for count, number in enumerate(Random(1).sample(range(size), size)):
                calls[number].cancel()
                if count % (size // 50) == 0:
                    first.allow_step()
                    second.allow_step()
                await asyncio.sleep(0)
            first.resume()
            second.resume()
            await routed.idle()
            for served in (one, two):
                await served.idle()
                served.check_whole()
            result = await routed.ask(infer_request())
            assert result.code is grpc.StatusCode.OK


async def test_stalled_caller_is_cut_without_harm_to_others() -> None:
    async def flood(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.write(ACCEPTED)
        while True:
            await context.write(specialist_pb2.GenerateEvent(chunk=specialist_pb2.Chunk(text="x" * 100_000)))

    impatient = patient_dispatch(stall_seconds=0.5)
    async with running_spy(flood) as spy, running_router({"writer": [spy.address]}, dispatch=impatient) as routed:
        call = routed.generate(infer_request(request_id="stalled"))
        await call.read()
        await routed.until(lambda: len(routed.server.live) == 0)
        await routed.until(lambda: spy.num_live == 0)
        kept = await routed.call("GetReceipt", wire.GetReceiptRequest(request_id="stalled"), wire.Receipt)
        assert kept.error.reason == error_pb2.ERROR_REASON_CALLER_STALLED
        call.cancel()


async def test_requests_beyond_the_limit_are_refused() -> None:
    router = RouterConfig(max_inflight=2)
    async with running_spy(hang) as spy, running_router({"writer": [spy.address]}, router=router) as routed:
        calls = [routed.generate(infer_request()) for _ in range(2)]
        await routed.until(lambda: spy.num_live == 2)
        result = await routed.ask(infer_request())
        assert (result.code, result.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            error_pb2.ERROR_REASON_QUEUE_FULL,
        )
        assert result.receipt is not None
        for call in calls:
            call.cancel()


async def test_a_session_stays_on_one_replica_and_a_burst_does_not() -> None:
    async with (
        running_spy() as one,
        running_spy() as two,
        running_router({"writer": [one.address, two.address]}) as routed,
    ):
        for _ in range(10):
            await routed.ask(infer_request(session_id="chat"))
        assert sorted((len(one.asked), len(two.asked))) == [0, 10]
        one.behave = two.behave = hang
        calls = [routed.generate(infer_request()) for _ in range(40)]
        await routed.until(lambda: one.num_live + two.num_live == 40)
        assert abs(one.num_live - two.num_live) <= 2, "in-flight requests must be counted at dispatch"
        for call in calls:
            call.cancel()
        await routed.idle()
