"""A shadow that hangs, fails, floods, dies or is too long: the primary's stream is the same to the byte."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from octet.config.ensemble import CorrectnessConfig, ShadowConfig
from octet.rpc.handlers import CallerGone, Context
from octet.rpc.refusal import Refusal, draining, engine_failed, invalid_field, queue_full
from octet.v1 import specialist_pb2 as wire
from router.dispatch.transport import ReplicaTarget
from router.quality.shadow import shadow_counts_to_wire
from tests.router.serving.spy import Behaviour, hang, spying
from tests.router.shadow.world import LANES, PRIMARY, SHADOW, World, accepted, chunk, order, saying, world
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


async def test_a_shadow_is_the_same_question_marked_as_a_copy() -> None:
    async with world() as (here, _, shadow):
        asked = order(adapters=("lora-1f",), names=("lora",), fresh=True)
        await here.says_no_more(shadow, adapters=[wire.ResidentAdapter(name="lora-1f")])
        await here.ask(here.errand(asked))
        await here.settled()
        (request,) = shadow.asked
        assert request.shadow and request.request_id == "r-1~shadow"
        assert (request.seed, request.tenant_salt, list(request.adapters)) == (4711, b"salt", ["lora-1f"])
        assert request.sampling.temperature == 0.5 and not request.sampling.HasField("num_logprobs")
        assert request.timeout_ms == 60_000 and 50 < shadow.seconds_left[0] <= 60
        assert shadow.metadata[0]["traceparent"] == "00-1-2-00"
        (comparison,) = here.told.comparisons
        assert (comparison.primary, comparison.shadow, comparison.why) == (PRIMARY, "rival+lora", "fresh_lane")
        assert comparison.agreed and comparison.similarity == 1 and comparison.request_id == "r-1"
        assert not comparison.feature_indices
        here.check_sums()


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
        (saying("x" * 200_000, lane=SHADOW), "unread", {}),
    ],
)
async def test_whatever_a_shadow_does_the_primary_is_answered_and_judged(
    behave: Behaviour, ending: str, settings: dict[str, Any]
) -> None:
    async with world(shadow=behave, **settings) as (here, _, shadow):
        alone = await here.ask()
        beside = await here.ask(here.errand())
        assert beside[1:] == alone[1:], "the same chunks to the byte"
        await here.settled()
        tally = here.shadows.counters
        assert (tally.ordered, tally.sent) == (1, 1)
        if ending == "unread":
            assert tally.answered == 1 and here.aftermath.counters.unread == 1
        else:
            assert getattr(tally, ending) == 1
        assert not here.told.comparisons
        assert here.told.judgements == [(LANES[PRIMARY], PRIMARY, "passed")] * 2
        await here.until(lambda: not shadow.num_live)
        here.check_untouched()
        here.check_sums()


@pytest.mark.parametrize(("text", "most"), [("", 60_000), ("x" * 50_000, 1000)])
async def test_endless_chunks_are_cut_by_their_number_and_by_their_size(text: str, most: int) -> None:
    """2,000 tokens are asked for, 128 KiB are kept; and then there is what the connection holds."""
    num_written = 0

    async def behave(_: wire.GenerateRequest, context: Context) -> None:
        nonlocal num_written
        await context.write(accepted(SHADOW))
        while True:
            await context.write(chunk(text))
            num_written += 1

    async with world(shadow=behave) as (here, _, shadow):
        await here.ask(here.errand())
        await here.settled()
        await here.until(lambda: not shadow.num_live)
        assert here.shadows.counters.shed == 1
        assert num_written < most


async def test_shadows_have_connections_of_their_own_as_long_as_their_replicas_are_there() -> None:
    async with world() as (here, _, shadow), spying(saying("good", lane=SHADOW)) as other:
        await here.ask(here.errand())
        await here.settled()
        lane = here.fleet.replica_sets[SHADOW]
        ((replica, channel),) = here.shadows._channels._channels.items()
        assert channel is not replica.channel
        here.fleet._update(lane, [ReplicaTarget(str(7), other.address)])
        await here.until(lambda: lane.is_usable and lane.replicas[f"{SHADOW}-7"].report is not None)
        await here.ask(here.errand())
        await here.settled()
        assert (len(shadow.asked), len(other.asked), len(here.shadows._channels)) == (1, 1, 1)
        assert replica not in here.shadows._channels._channels


async def test_a_shadows_word_is_no_proof_of_health() -> None:
    go_on = asyncio.Event()

    async def behave(_: wire.GenerateRequest, context: Context) -> None:
        await context.write(accepted(SHADOW))
        await go_on.wait()
        await context.write(chunk("good"))
        await context.write(wire.GenerateEvent(usage=wire.Usage(finish_reason=wire.FINISH_REASON_STOP)))

    async with world(shadow=behave) as (here, _, shadow):
        breaker = here.fleet.replica_sets[SHADOW].replicas[f"{SHADOW}-0"].breaker
        await here.ask(here.errand())
        await here.until(lambda: shadow.num_live)
        breaker.trip()
        await here.until(lambda: breaker.state == "half_open")
        go_on.set()
        await here.settled()
        assert here.shadows.counters.answered == 1 and breaker.state == "half_open"


async def test_a_shadow_whose_replica_dies_is_a_shadow_that_failed() -> None:
    async def begin(_: wire.GenerateRequest, context: Context) -> None:
        await context.write(accepted(SHADOW))
        await context.write(chunk("x"))
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack, world() as (here, _, _unused):
        doomed = await stack.enter_async_context(spying(begin))
        lane = here.fleet.replica_sets[SHADOW]
        here.fleet._update(lane, [ReplicaTarget(str(7), doomed.address)])
        await here.until(lambda: lane.is_usable and lane.replicas[f"{SHADOW}-7"].report is not None)
        assert await here.ask(here.errand()) and here.shadows.num_inflight == 1
        await here.until(lambda: doomed.num_live)
        breaker = lane.replicas[f"{SHADOW}-7"].breaker
        await stack.aclose()
        await here.settled()
        assert here.shadows.counters.failed == 1 and not here.told.comparisons
        assert breaker._num_failures == 0, "its connection is gone, and that its watcher has seen; no more"
        assert await here.ask(here.errand())
        assert here.shadows.counters.shed == 1, "nobody is there to take one"
        here.check_sums()


async def test_a_slow_shadow_is_compared_when_it_is_done() -> None:
    async with world(shadow=saying("all ", "bad", lane=SHADOW, seconds=0.15)) as (here, _, _shadow):
        await here.ask(here.errand(order(why="demoted")))
        assert here.shadows.num_inflight == 1 and not here.told.judgements
        await here.settled()
        (comparison,) = here.told.comparisons
        assert not comparison.agreed
        assert (comparison.primary_outcome, comparison.shadow_outcome) == ("passed", "failed")
        assert comparison.feature_indices and len(comparison.feature_indices) == len(comparison.feature_values)


async def stalling(_: wire.GenerateRequest, context: Context) -> None:
    """An answer that begins and does not go on."""
    await context.write(accepted())
    await context.write(chunk("x"))
    await asyncio.Event().wait()


def test_what_ends_without_an_answer_takes_its_shadow_with_it() -> None:
    async def story(fail: Callable[[World], Awaitable[None]], primary: Behaviour) -> None:
        async with world(primary, hang) as (here, _, shadow):
            await fail(here)
            await here.until(lambda: not shadow.num_live)
            await here.settled()
            assert (here.shadows.counters.shed, here.shadows.counters.failed) == (1, 0)
            assert not here.told.comparisons and not here.told.judgements and not here.grader.asked
            here.check_sums()

    async def is_cancelled(here: World) -> None:
        task = asyncio.create_task(here.ask(here.errand()))
        await here.until(lambda: here.shadows.counters.sent)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)

    async def is_failed(here: World) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await here.ask(here.errand())

    async def is_left(here: World) -> None:
        written = 0

        async def write(raw: bytes) -> None:
            nonlocal written
            written += 1
            if written > 2:
                raise ConnectionError("gone")

        with pytest.raises(CallerGone):
            await here.answer(write, here.errand())

    run(story(is_cancelled, stalling))
    run(story(is_failed, refusing(engine_failed("x"), accepted(), chunk("x"))))
    run(story(is_left, saying("x", "y", seconds=0.1)))


async def test_refused_requests_have_no_shadow() -> None:
    async with world(refusing(queue_full("waiting", 1, 1.0))) as (here, _, shadow):
        with pytest.raises(grpc.aio.AioRpcError):
            await here.ask(here.errand())
        assert not here.shadows.counters.ordered and not shadow.asked
        await here.settled()


@pytest.mark.parametrize(("why", "most"), [("low_confidence", 1 + 40 // 4), ("fresh_lane", 40)])
async def test_the_budget_holds_in_a_burst(why: str, most: int) -> None:
    async with world(budget=0.25, max_inflight=8) as (here, _, shadow):
        await here.says_no_more(shadow)
        for _ in range(8):
            await asyncio.gather(*(here.ask(here.errand(order(why=why))) for _ in range(5)))
            await here.until(lambda: not here.shadows.num_inflight)
        await here.settled()
        assert len(shadow.asked) <= most
        assert len(shadow.asked) >= (most if why == "fresh_lane" else most - 2)
        assert len(here.told.comparisons) == here.shadows.counters.answered == len(shadow.asked)
        counts = shadow_counts_to_wire(here.shadows, here.aftermath)
        assert (counts.ordered, counts.compared) == (40, len(shadow.asked))
        here.check_sums()


def test_never_more_at_once_than_there_are_seats_or_were_allowed() -> None:
    async def story(allowed: int, seats: int) -> None:
        async with world(shadow=hang, max_inflight=allowed) as (here, _, shadow):
            await here.says_no_more(shadow)
            for _ in range(20):
                await here.ask(here.errand())
                assert here.shadows.num_inflight <= min(allowed, seats)
            await here.until(lambda: shadow.num_live == min(allowed, seats))
            assert here.shadows.counters.shed == 20 - min(allowed, seats)
            here.check_sums()

    run(story(3, 8))
    run(story(100, 8))
    run(story(0, 8))


async def test_a_thousand_large_prompts_stay_within_the_room() -> None:
    large = "x" * 400_000
    async with world(shadow=hang, max_inflight=4096, bounds={"most_bytes": 4 << 20}) as (here, _, shadow):
        replica = here.fleet.replica_sets[SHADOW].replicas[f"{SHADOW}-0"]
        receipt = await here.answer(_nowhere)
        tickets = []
        for _ in range(1000):
            replica.load_reported(wire.LoadReport(max_running=4096))
            tickets.append(here.shadows.order(here.errand(text=large), receipt))
            assert here.shadows.byte_budget.taken <= 4 << 20
        sent = [ticket for ticket in tickets if ticket is not None]
        assert len(sent) == (4 << 20) // 400_000
        await here.until(lambda: shadow.num_live == len(sent))
        assert here.shadows.byte_budget.taken <= 4 << 20
        for ticket in sent:
            ticket.cancel()
        await here.settled()
        here.check_sums()


async def test_a_request_that_grew_when_it_was_composed_finds_no_room() -> None:
    async with world(bounds={"most_bytes": 100_000}) as (here, _, shadow):
        await here.ask(here.errand(text="x" * 200_000, num_bytes=10))
        await here.settled()
        assert (here.shadows.counters.shed, here.shadows.counters.sent, shadow.asked) == (1, 0, [])


async def test_a_composing_error_affects_only_the_shadow() -> None:
    def broken(_: float) -> wire.GenerateRequest:
        raise RuntimeError("a mistake")

    async with world() as (here, _, shadow):
        assert await here.ask(here.errand(compose=broken))
        assert await here.ask(here.errand(may_answer=broken))
        await here.settled()
        assert here.shadows.counters.failed == 2 and not shadow.asked
        assert len(here.told.judgements) == 2
        here.check_sums()


async def test_an_answer_without_evaluation_is_not_captured() -> None:
    async with world(saying("x" * 1000, "y", "z")) as (here, _, _shadow):
        held = []

        async def write(_: bytes) -> None:
            held.append(here.aftermath.budget.taken)

        await here.answer(write, here.errand(may_answer=lambda _: False), sample=False)
        assert held == [0, 0, 0, 0] and not here.aftermath.counters.submitted
        await here.answer(write, here.errand(), sample=False)
        assert held[-1] > 1000
        await here.settled()


async def test_a_lane_is_not_its_own_shadow() -> None:
    async with world() as (here, _, shadow):
        await here.ask(here.errand(order(PRIMARY)))
        await here.settled()
        assert not here.shadows.counters.ordered and not shadow.asked


async def test_other_figures_count_from_now_on() -> None:
    async with world(shadow=hang, timeout=600) as (here, _, _shadow):
        await here.ask(here.errand())
        here.shadows.apply(ShadowConfig(timeout=0.1, max_inflight=2), CorrectnessConfig())
        await here.ask(here.errand())
        await here.until(lambda: here.shadows.counters.failed == 1)
        assert here.shadows.num_inflight == 1, "the first goes on as it began"
        here.shadows.apply(ShadowConfig(timeout=600, max_inflight=2), CorrectnessConfig())
        await here.ask(here.errand())
        await here.ask(here.errand())
        assert (here.shadows.num_inflight, here.shadows.counters.shed) == (2, 1)
        here.check_sums()


async def test_the_end_comes_at_once_and_leaves_nothing() -> None:
    async with world(shadow=hang) as (here, _, _shadow):
        here.grader.go_on.clear()
        await here.ask()
        await asyncio.gather(*(here.ask(here.errand()) for _ in range(4)))
        await here.until(lambda: here.grader.asked and here.shadows.num_inflight == 4)
        late = asyncio.create_task(here.ask(here.errand()))
        await late
        async with asyncio.timeout(60):
            await here.shadows.close()
            await here.aftermath.close()
        assert not here.shadows.byte_budget.taken and not here.aftermath.budget.taken
        assert await here.ask(here.errand()), "who is answered yet is answered"
        assert not here.shadows.byte_budget.taken and not here.aftermath.budget.taken
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if "shadow" in name or "judging" in name]
        here.check_sums()


async def _nowhere(_: bytes) -> None: ...
