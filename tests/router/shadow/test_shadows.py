"""The bytes of the primary's stream are the same whether its shadow hangs, fails, floods, dies or is too long."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from octet.config.ensemble import ShadowConfig
from octet.rpc.handlers import CallerGone, Context
from octet.rpc.refusal import Refusal, draining, engine_failed, invalid_field, queue_full
from octet.v1 import specialist_pb2 as wire
from router.dispatch.transport import ReplicaTarget
from router.quality.shadow import shadow_counts_to_wire
from router.quality.shadow_copy import OrderedShadow
from tests.patience import PATIENCE
from tests.router.serving.spy import Behaviour, hang, running_spy
from tests.router.shadow.harness import (
    LANES,
    PRIMARY,
    SHADOW,
    ShadowHarness,
    accepted,
    answering,
    chunk,
    ensemble_of,
    order,
    running_shadows,
)
from tests.specialist.server.harness import run


def refusing(refusal: Refusal, *first: object) -> Behaviour:
    async def behave(_: wire.GenerateRequest, context: Context) -> None:
        for event in first:
            await context.write(event)
        raise refusal

    return behave


def only(*events: object) -> Behaviour:
    async def behave(_: wire.GenerateRequest, context: Context) -> None:
        for event in events:
            await context.write(event)

    return behave


async def flood(_: wire.GenerateRequest, context: Context) -> None:
    await context.write(accepted(SHADOW))
    while True:
        await context.write(chunk(""))
        await asyncio.sleep(0)


async def flood_of_giants(_: wire.GenerateRequest, context: Context) -> None:
    await context.write(accepted(SHADOW))
    while True:
        await context.write(chunk("x" * 300_000))


async def giant(_: wire.GenerateRequest, context: Context) -> None:
    await context.write(accepted(SHADOW))
    await context.write(chunk("x" * 5_000_000))


async def test_shadow_is_the_same_request_marked_as_a_copy() -> None:
    async with running_shadows() as (harness, _, shadow):
        asked = order(adapters=("lora-1f",), names=("lora",), fresh=True)
        await harness.send_last_report(shadow, adapters=[wire.ResidentAdapter(name="lora-1f")])
        await harness.ask(harness.make_task(asked))
        await harness.settled()
        (request,) = shadow.asked
        assert request.shadow and request.request_id == "r-1~shadow"
        assert (request.seed, request.tenant_salt, list(request.adapters)) == (4711, b"salt", ["lora-1f"])
        assert request.sampling.temperature == 0.5 and not request.sampling.HasField("num_logprobs")
        assert request.timeout_ms == 60_000 and 50 < shadow.seconds_left[0] <= 60
        assert shadow.metadata[0]["traceparent"] == "00-1-2-00"
        (comparison,) = harness.events.comparisons
        assert (comparison.primary, comparison.shadow, comparison.why) == (PRIMARY, "critic+lora", "fresh_lane")
        assert comparison.agreed and comparison.similarity == 1 and comparison.request_id == "r-1"
        assert not comparison.feature_indices
        harness.check_sums()


@pytest.mark.parametrize(
    ("behave", "ending", "settings"),
    [
        (hang, "failed", {"timeout": 0.2}),
        (only(accepted(SHADOW), chunk("x")), "failed", {}),
        (only(chunk("x")), "failed", {}),
        (only(accepted(SHADOW), accepted(SHADOW)), "failed", {}),
        (only(wire.GenerateEvent()), "failed", {}),
        (refusing(engine_failed("x")), "failed", {}),
        (refusing(engine_failed("x"), accepted(SHADOW), chunk("x")), "failed", {}),
        (refusing(invalid_field("stop", "shorter", "long")), "failed", {}),
        (refusing(queue_full("waiting", 1, 1.0)), "shed", {}),
        (refusing(draining()), "shed", {}),
        (refusing(queue_full("waiting", 1, 1.0), accepted(SHADOW), chunk("x")), "shed", {}),
        (flood, "shed", {}),
        (flood_of_giants, "shed", {}),
        (giant, "shed", {}),
        (answering("x" * 200_000, lane=SHADOW), "unread", {}),
    ],
)
async def test_primary_is_answered_and_evaluated_whatever_its_shadow_does(
    behave: Behaviour, ending: str, settings: dict[str, Any]
) -> None:
    async with running_shadows(shadow=behave, **settings) as (harness, _, shadow):
        without_shadow = await harness.ask()
        with_shadow = await harness.ask(harness.make_task())
        assert with_shadow[1:] == without_shadow[1:], "the chunks must be the same byte for byte"
        await harness.settled()
        counters = harness.shadows.counters
        assert (counters.ordered, counters.sent) == (1, 1)
        if ending == "unread":
            assert counters.answered == 1 and harness.evaluation.counters.unread == 1
        else:
            assert getattr(counters, ending) == 1
        assert not harness.events.comparisons
        assert harness.events.judgements == [(LANES[PRIMARY], PRIMARY, "passed")] * 2
        await harness.until(lambda: not shadow.num_live)
        harness.check_untouched()
        harness.check_sums()


@pytest.mark.parametrize(("text", "most"), [("", 60_000), ("x" * 50_000, 1000)])
async def test_endless_chunks_are_limited_in_number_and_in_size(text: str, most: int) -> None:
    """The request allows 2,000 tokens, and at most 128 KiB are captured. The replica can write somewhat more, which the
    connection buffers."""
    num_written = 0

    async def behave(_: wire.GenerateRequest, context: Context) -> None:
        nonlocal num_written
        await context.write(accepted(SHADOW))
        while True:
            await context.write(chunk(text))
            num_written += 1

    async with running_shadows(shadow=behave) as (harness, _, shadow):
        await harness.ask(harness.make_task())
        await harness.settled()
        await harness.until(lambda: not shadow.num_live)
        assert harness.shadows.counters.shed == 1
        assert num_written < most


async def test_shadows_have_their_own_connections_while_their_replicas_are_listed() -> None:
    async with running_shadows() as (harness, _, shadow), running_spy(answering("good", lane=SHADOW)) as other:
        await harness.ask(harness.make_task())
        await harness.settled()
        lane = harness.fleet.replica_sets[SHADOW]
        ((replica, channel),) = harness.shadows._channels._channels.items()
        assert channel is not replica.channel
        harness.fleet._update(lane, [ReplicaTarget(str(7), other.address)])
        await harness.until(lambda: lane.is_usable and lane.replicas[f"{SHADOW}-7"].report is not None)
        await harness.ask(harness.make_task())
        await harness.settled()
        assert (len(shadow.asked), len(other.asked), len(harness.shadows._channels._channels)) == (1, 1, 1)
        assert replica not in harness.shadows._channels._channels


async def test_an_answered_shadow_does_not_close_a_breaker() -> None:
    may_continue = asyncio.Event()

    async def behave(_: wire.GenerateRequest, context: Context) -> None:
        await context.write(accepted(SHADOW))
        await may_continue.wait()
        await context.write(chunk("good"))
        await context.write(wire.GenerateEvent(usage=wire.Usage(finish_reason=wire.FINISH_REASON_STOP)))

    async with running_shadows(shadow=behave) as (harness, _, shadow):
        breaker = harness.fleet.replica_sets[SHADOW].replicas[f"{SHADOW}-0"].breaker
        await harness.ask(harness.make_task())
        await harness.until(lambda: shadow.num_live)
        breaker.trip()
        await harness.until(lambda: breaker.state == "half_open")
        may_continue.set()
        await harness.settled()
        assert harness.shadows.counters.answered == 1 and breaker.state == "half_open"


async def test_a_shadow_whose_replica_dies_has_failed() -> None:
    async def begin(_: wire.GenerateRequest, context: Context) -> None:
        await context.write(accepted(SHADOW))
        await context.write(chunk("x"))
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack, running_shadows() as (harness, _, _unused):
        doomed = await stack.enter_async_context(running_spy(begin))
        lane = harness.fleet.replica_sets[SHADOW]
        harness.fleet._update(lane, [ReplicaTarget(str(7), doomed.address)])
        await harness.until(lambda: lane.is_usable and lane.replicas[f"{SHADOW}-7"].report is not None)
        assert await harness.ask(harness.make_task()) and harness.shadows.num_inflight == 1
        await harness.until(lambda: doomed.num_live)
        breaker = lane.replicas[f"{SHADOW}-7"].breaker
        await stack.aclose()
        await harness.settled()
        assert harness.shadows.counters.failed == 1 and not harness.events.comparisons
        assert breaker._num_failures == 0, "a lost connection must not count as a failed request"
        assert await harness.ask(harness.make_task())
        assert harness.shadows.counters.shed == 1, "no replica is left"
        harness.check_sums()


async def test_a_slow_shadow_is_compared_when_it_is_done() -> None:
    may_finish = asyncio.Event()

    async def slow(request: wire.GenerateRequest, context: Context) -> None:
        await may_finish.wait()
        await answering("all ", "bad", lane=SHADOW)(request, context)

    async with running_shadows(shadow=slow) as (harness, _, _shadow):
        await harness.ask(harness.make_task(order(why="demoted")))
        assert harness.shadows.num_inflight == 1 and not harness.events.judgements
        may_finish.set()
        await harness.settled()
        (comparison,) = harness.events.comparisons
        assert not comparison.agreed
        assert (comparison.primary_outcome, comparison.shadow_outcome) == ("passed", "failed")
        assert comparison.feature_indices and len(comparison.feature_indices) == len(comparison.feature_values)


async def stalling(_: wire.GenerateRequest, context: Context) -> None:
    """Begin an answer and never continue it."""
    await context.write(accepted())
    await context.write(chunk("x"))
    await asyncio.Event().wait()


def test_a_request_without_an_answer_cancels_its_shadow() -> None:
    async def scenario(end: Callable[[ShadowHarness], Awaitable[None]], primary: Behaviour) -> None:
        async with running_shadows(primary, hang) as (harness, _, shadow):
            await end(harness)
            await harness.until(lambda: not shadow.num_live)
            await harness.settled()
            assert (harness.shadows.counters.shed, harness.shadows.counters.failed) == (1, 0)
            assert not harness.events.comparisons and not harness.events.judgements and not harness.grader.asked
            harness.check_sums()

    async def cancel(harness: ShadowHarness) -> None:
        task = asyncio.create_task(harness.ask(harness.make_task()))
        await harness.until(lambda: harness.shadows.counters.sent)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)

    async def fail(harness: ShadowHarness) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await harness.ask(harness.make_task())

    async def leave(harness: ShadowHarness) -> None:
        written = 0

        async def write(raw: bytes) -> None:
            nonlocal written
            written += 1
            if written > 2:
                raise ConnectionError("gone")

        with pytest.raises(CallerGone):
            await harness.answer(write, harness.make_task())

    run(scenario(cancel, stalling))
    run(scenario(fail, refusing(engine_failed("x"), accepted(), chunk("x"))))
    run(scenario(leave, answering("x", "y", seconds=0.1)))


async def test_refused_requests_have_no_shadow() -> None:
    async with running_shadows(refusing(queue_full("waiting", 1, 1.0))) as (harness, _, shadow):
        with pytest.raises(grpc.aio.AioRpcError):
            await harness.ask(harness.make_task())
        await harness.settled()
        assert harness.shadows.counters.ended == {("shed", "no_answer"): 1} and not shadow.asked


@pytest.mark.parametrize(("why", "most"), [("low_confidence", 1 + 40 // 4), ("fresh_lane", 40)])
async def test_the_budget_holds_in_a_burst(why: str, most: int) -> None:
    async with running_shadows(budget=0.25, max_inflight=8) as (harness, _, shadow):
        await harness.send_last_report(shadow)
        for _ in range(8):
            await asyncio.gather(*(harness.ask(harness.make_task(order(why=why))) for _ in range(5)))
            await harness.until(lambda: not harness.shadows.num_inflight)
        await harness.settled()
        assert len(shadow.asked) <= most
        assert len(shadow.asked) >= (most if why == "fresh_lane" else most - 2)
        assert len(harness.events.comparisons) == harness.shadows.counters.answered == len(shadow.asked)
        counts = shadow_counts_to_wire(harness.shadows, harness.evaluation)
        assert (counts.ordered, counts.compared) == (40, len(shadow.asked))
        harness.check_sums()


def test_shadows_in_flight_are_limited_by_free_slots_and_by_configuration() -> None:
    async def scenario(allowed: int, slots: int) -> None:
        async with running_shadows(shadow=hang, max_inflight=allowed) as (harness, _, shadow):
            await harness.send_last_report(shadow)
            for _ in range(20):
                await harness.ask(harness.make_task())
                assert harness.shadows.num_inflight <= min(allowed, slots)
            await harness.until(lambda: shadow.num_live == min(allowed, slots))
            assert harness.shadows.counters.shed == 20 - min(allowed, slots)
            harness.check_sums()

    run(scenario(3, 8))
    run(scenario(100, 8))
    run(scenario(0, 8))


async def test_a_thousand_large_prompts_stay_within_the_byte_budget() -> None:
    large = "x" * 400_000
    async with running_shadows(shadow=hang, max_inflight=4096, bounds={"most_bytes": 4 << 20}) as (harness, _, shadow):
        replica = harness.fleet.replica_sets[SHADOW].replicas[f"{SHADOW}-0"]
        receipt = await harness.answer(_nowhere)
        tickets = []
        for _ in range(1000):
            replica.load_reported(wire.LoadReport(max_running=4096))
            task = harness.make_task(text=large)
            tickets.append(harness.shadows.send(task, OrderedShadow(task.order, harness.shadows.counters), receipt))
            assert harness.shadows.byte_budget.taken <= 4 << 20
        sent = [ticket for ticket in tickets if ticket is not None]
        assert len(sent) == (4 << 20) // 400_000
        await harness.until(lambda: shadow.num_live == len(sent))
        assert harness.shadows.byte_budget.taken <= 4 << 20
        for ticket in sent:
            ticket.cancel()
        await harness.settled()
        harness.check_sums()


async def test_a_composed_request_larger_than_the_byte_budget_is_shed() -> None:
    async with running_shadows(bounds={"most_bytes": 100_000}) as (harness, _, shadow):
        await harness.ask(harness.make_task(text="x" * 200_000, num_bytes=10))
        await harness.settled()
        assert (harness.shadows.counters.shed, harness.shadows.counters.sent, shadow.asked) == (1, 0, [])


async def test_a_composing_error_affects_only_the_shadow() -> None:
    def broken(_: float) -> wire.GenerateRequest:
        raise RuntimeError("a mistake")

    async with running_shadows() as (harness, _, shadow):
        assert await harness.ask(harness.make_task(compose=broken))
        assert await harness.ask(harness.make_task(may_answer=broken))
        await harness.settled()
        assert harness.shadows.counters.failed == 2 and not shadow.asked
        assert len(harness.events.judgements) == 2
        harness.check_sums()


async def test_an_answer_without_evaluation_is_not_captured() -> None:
    async with running_shadows(answering("x" * 1000, "y", "z")) as (harness, _, _shadow):
        held = []

        async def write(_: bytes) -> None:
            held.append(harness.evaluation.budget.taken)

        await harness.answer(write, harness.make_task(may_answer=lambda _: False), sample=False)
        assert held == [0, 0, 0, 0] and not harness.evaluation.counters.submitted
        await harness.answer(write, harness.make_task(), sample=False)
        assert held[-1] > 1000
        await harness.settled()


async def test_a_lane_is_not_its_own_shadow() -> None:
    async with running_shadows() as (harness, _, shadow):
        await harness.ask(harness.make_task(order(PRIMARY)))
        await harness.settled()
        assert harness.shadows.counters.ended == {("shed", "same_lane"): 1} and not shadow.asked


async def test_new_settings_apply_to_new_shadows() -> None:
    async with running_shadows(shadow=hang, timeout=600) as (harness, _, _shadow):
        await harness.ask(harness.make_task())
        harness.shadows.apply(ensemble_of(ShadowConfig(timeout=0.1, max_inflight=2)))
        await harness.ask(harness.make_task())
        await harness.until(lambda: harness.shadows.counters.failed == 1 and harness.shadows.num_inflight < 2)
        assert harness.shadows.num_inflight == 1, "the first shadow must keep the settings it began with"
        harness.shadows.apply(ensemble_of(ShadowConfig(timeout=600, max_inflight=2)))
        await harness.ask(harness.make_task())
        await harness.ask(harness.make_task())
        assert (harness.shadows.num_inflight, harness.shadows.counters.shed) == (2, 1)
        harness.check_sums()


async def test_close_cancels_every_task_and_frees_every_byte() -> None:
    async with running_shadows(shadow=hang) as (harness, _, _shadow):
        harness.grader.go_on.clear()
        await harness.ask()
        await asyncio.gather(*(harness.ask(harness.make_task()) for _ in range(4)))
        await harness.until(lambda: harness.grader.asked and harness.shadows.num_inflight == 4)
        late = asyncio.create_task(harness.ask(harness.make_task()))
        await late
        async with asyncio.timeout(PATIENCE):
            await harness.shadows.close()
            await harness.evaluation.close()
        assert not harness.shadows.byte_budget.taken and not harness.evaluation.budget.taken
        assert await harness.ask(harness.make_task()), "requests must still be answered"
        assert not harness.shadows.byte_budget.taken and not harness.evaluation.budget.taken
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if "shadow" in name or "run_scenario" in name]
        harness.check_sums()


async def _nowhere(_: bytes) -> None: ...
