"""Replicas that refuse, fail, hang, drain and talk nonsense: who is asked again, how often, and what is said."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from octet.config.ensemble import DispatchConfig
from octet.rpc.calls import Context
from octet.rpc.refusal import Refusal, draining, engine_failed, invalid, not_ready, queue_full, replica_failed
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import inference_pb2 as wire
from tests.router.service.harness import Heard, Routed, asking, quick, routing
from tests.router.service.spy import ACCEPTED, CHUNK, Behaviour, Spy, answer, hang, spying
from tests.service.harness import run

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@asynccontextmanager
async def lane(
    *behaviours: Behaviour, dispatch: DispatchConfig | None = None
) -> AsyncIterator[tuple[Routed, list[Spy]]]:
    """A router before replicas of one specialist that behave so."""
    async with AsyncExitStack() as stack:
        spies = [await stack.enter_async_context(spying(behave)) for behave in behaviours]
        places = {"writer": [spy.address for spy in spies]}
        yield await stack.enter_async_context(routing(places, dispatch=dispatch)), spies


def refusing(refusal: Refusal) -> Behaviour:
    async def behave(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        raise refusal

    return behave


def saying(*events: object, then: Refusal | None = None, seconds: float = 0.0) -> Behaviour:
    async def behave(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        for event in events:
            await context.write(event)
        await asyncio.sleep(seconds)
        if then is not None:
            raise then

    return behave


@pytest.mark.parametrize(
    "behave",
    [
        refusing(draining()),
        refusing(not_ready()),
        refusing(queue_full("waiting", 1, 2.0)),
        refusing(replica_failed()),
        refusing(engine_failed("x")),
        saying(ACCEPTED, then=engine_failed("x")),
        saying(ACCEPTED),
        saying(specialist_pb2.GenerateEvent()),
    ],
)
def test_before_the_first_token_another_replica_answers(behave: Behaviour) -> None:
    async def story() -> None:
        async with lane(behave, answer) as (routed, (bad, good)):
            num_answered = 0
            while not bad.asked:
                heard = await routed.ask(asking())
                assert (heard.code, heard.text) == (grpc.StatusCode.OK, "x")
                assert heard.receipt is not None and heard.receipt.replica == "writer-1"
                num_answered += 1
            assert len(good.asked) == num_answered
            assert routed.num_inflight == 0

    run(story())


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        (None, error_pb2.ERROR_REASON_REPLICA_LOST),
        (engine_failed("x"), error_pb2.ERROR_REASON_ENGINE_FAILED),
    ],
)
def test_after_the_first_token_nobody_else_is_asked(then: Refusal | None, reason: int) -> None:
    async def story() -> None:
        behave = saying(ACCEPTED, CHUNK, then=then)
        async with lane(behave, behave) as (routed, (bad, worse)):
            heard = await routed.ask(asking())
            assert (heard.reason, heard.text) == (reason, "x")
            assert heard.receipt is not None and heard.receipt.error.reason == reason
            assert len(bad.asked) + len(worse.asked) == 1

    run(story())


def test_a_mistake_of_the_callers_is_told_at_once() -> None:
    async def story() -> None:
        behave = refusing(invalid("stop", "shorter", "long"))
        async with lane(behave, behave) as (routed, (one, two)):
            heard = await routed.ask(asking())
            assert heard.code is grpc.StatusCode.INVALID_ARGUMENT
            assert len(one.asked) + len(two.asked) == 1

    run(story())


def test_full_everywhere_tells_the_soonest_return() -> None:
    async def story() -> None:
        later, sooner = refusing(queue_full("waiting", 1, 9.0)), refusing(queue_full("waiting", 1, 2.0))
        async with lane(later, sooner) as (routed, (_one, _two)):
            heard = await routed.ask(asking())
            assert heard.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert heard.error is not None and heard.error.retry_after_ms == 2000
            assert heard.receipt is not None and len(heard.receipt.attempts) == 2

    run(story())


def test_retries_never_outrun_their_bucket() -> None:
    async def story() -> None:
        behave = refusing(queue_full("waiting", 1, 2.0))
        dispatch = quick(retry_burst=5.0)
        async with lane(behave, behave, dispatch=dispatch) as (routed, (one, two)):
            for _ in range(40):
                await routed.ask(asking())
            assert len(one.asked) + len(two.asked) == 45

    run(story())


def test_a_request_that_fails_its_replicas_is_tried_twice_and_no_more() -> None:
    async def story() -> None:
        behave = refusing(engine_failed("x"))
        async with lane(behave, behave, behave) as (routed, spies):
            heard = await routed.ask(asking())
            assert heard.reason == error_pb2.ERROR_REASON_ENGINE_FAILED
            assert sum(len(spy.asked) for spy in spies) == 2

    run(story())


def test_the_breaker_opens_and_lets_a_probe_through_when_it_has_cooled_down() -> None:
    async def story() -> None:
        dispatch = quick(failures=2, cool_down=0.2, max_cool_down=0.2)
        async with lane(refusing(replica_failed()), answer, dispatch=dispatch) as (routed, (bad, _good)):
            while len(bad.asked) < 2:
                await routed.ask(asking())
            for _ in range(10):
                await routed.ask(asking())
            assert len(bad.asked) == 2, "an open breaker lets nobody through"
            bad.behave = answer
            await asyncio.sleep(0.25)
            heard = [await routed.ask(asking()) for _ in range(20)]
            assert "half_open" in {each.receipt.breaker for each in heard if each.receipt}
            assert len(bad.asked) > 3, "and closes again"

    run(story())


def test_the_last_replica_is_asked_whatever_its_breaker_says() -> None:
    async def story() -> None:
        async with lane(refusing(replica_failed())) as (routed, (spy,)):
            for _ in range(6):
                heard = await routed.ask(asking())
                assert heard.reason == error_pb2.ERROR_REASON_REPLICA_FAILED
            assert len(spy.asked) == 6
            spy.behave = answer
            assert (await routed.ask(asking())).code is grpc.StatusCode.OK

    run(story())


def test_a_lane_that_is_away_is_told_at_once() -> None:
    async def story() -> None:
        async with routing({"writer": ["127.0.0.1:1"]}, warm=False) as routed:
            await routed.ask(asking())
            began = time.monotonic()
            heard = await routed.ask(asking())
            assert time.monotonic() - began < 0.05
            assert (heard.code, heard.reason) == (UNAVAILABLE, error_pb2.ERROR_REASON_NO_REPLICA)
            assert heard.receipt is not None and heard.receipt.decision.primary == "writer"

    run(story())


def test_an_answer_without_a_token_is_given_up_and_asked_for_elsewhere() -> None:
    async def story() -> None:
        dispatch = quick(stall_seconds=0.5)
        async with lane(hang, answer, dispatch=dispatch) as (routed, (bad, _good)):
            heard = await asyncio.gather(*(routed.ask(asking()) for _ in range(8)))
            assert {each.text for each in heard} == {"x"}
            assert bad.asked
            await routed.until(lambda: bad.num_live == 0)

    run(story())


def test_a_replica_that_is_silent_though_it_should_report_is_left_within_two_seconds() -> None:
    async def story() -> None:
        async with lane(saying(ACCEPTED, seconds=60), answer) as (routed, (bad, _good)):
            asked: list[asyncio.Task[Heard]] = []
            while not bad.asked:
                asked.append(asyncio.create_task(routed.ask(asking())))
                await asyncio.sleep(0.01)
            bad.reports = False
            began = time.monotonic()
            heard = await asyncio.gather(*asked)
            assert time.monotonic() - began < 2
            assert {each.text for each in heard} == {"x"}
            bad.behave, num_asked = answer, len(bad.asked)
            await asyncio.gather(*(routed.ask(asking()) for _ in range(8)))
            assert len(bad.asked) == num_asked
            bad.reports = True
            await routed.until(lambda: all(each.usable for each in routed.server.fleet.replicas))
            await asyncio.gather(*(routed.ask(asking()) for _ in range(16)))
            assert len(bad.asked) > num_asked, "heard from again, asked again"

    run(story())


def test_the_second_choice_takes_over_where_the_primary_cannot() -> None:
    async def story() -> None:
        full = refusing(queue_full("waiting", 1, 2.0))
        async with (
            spying(full) as bad,
            spying() as good,
            routing({"writer": [bad.address], "poet": [good.address]}) as routed,
        ):
            both = asking(force_specialists=["writer", "poet"])
            decision = (await routed.call("Route", both, wire.Receipt)).decision
            assert (decision.primary, decision.second_choice) == ("writer", "poet")
            heard = await routed.ask(both)
            assert heard.receipt is not None
            assert (heard.receipt.specialist, heard.receipt.decision.primary) == ("poet", "writer")
            assert [each.specialist for each in heard.receipt.attempts] == ["writer", "poet"]
            alone = await routed.ask(asking())
            assert alone.reason == error_pb2.ERROR_REASON_QUEUE_FULL

    run(story())
