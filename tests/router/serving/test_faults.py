"""Replicas that refuse, fail, hang, drain or break the protocol: the retries, their limits, and the refusals."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from octet.clock import SystemClock
from octet.config.ensemble import DispatchConfig
from octet.rpc.handlers import UNREAD_FIELD, Context
from octet.rpc.refusal import (
    Refusal,
    cancelled,
    draining,
    engine_failed,
    invalid_field,
    not_ready,
    prompt_too_long,
    queue_full,
    replica_failed,
    unknown_adapter,
)
from octet.v1 import error_pb2, specialist_pb2
from octet.v1 import inference_pb2 as wire
from router.control.state import SharedState
from router.dispatch.replicas.fleet import Watchdog
from tests.patience import PATIENCE
from tests.router.serving.harness import (
    CallResult,
    RouterHarness,
    ensemble_of,
    infer_request,
    patient_dispatch,
    running_router,
)
from tests.router.serving.spy import ACCEPTED, CHUNK, USAGE, Behaviour, SpyReplica, answer, hang, running_spy
from tests.specialist.server.harness import run

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@asynccontextmanager
async def lane(
    *behaviours: Behaviour, dispatch: DispatchConfig | None = None
) -> AsyncIterator[tuple[RouterHarness, list[SpyReplica]]]:
    """Run a router and one specialist, with a replica for each of these behaviours."""
    async with AsyncExitStack() as stack:
        spies = [await stack.enter_async_context(running_spy(behave)) for behave in behaviours]
        places = {"writer": [spy.address for spy in spies]}
        yield await stack.enter_async_context(running_router(places, dispatch=dispatch)), spies


class ShiftedClock(SystemClock):
    """The system clock, ahead by a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.now = lambda: time.monotonic() + seconds


def advance_breakers(routed: RouterHarness, seconds: float) -> None:
    for replica in routed.server.fleet.replicas:
        replica.breaker._clock = ShiftedClock(seconds)


def refusing(refusal: Refusal) -> Behaviour:
    async def behave(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        raise refusal

    return behave


def sending(*events: object, then: Refusal | None = None, hangs: bool = False) -> Behaviour:
    async def behave(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        for event in events:
            await context.write(event)
        if hangs:
            await asyncio.Event().wait()
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
        sending(ACCEPTED, then=engine_failed("x")),
        sending(ACCEPTED),
        sending(specialist_pb2.GenerateEvent()),
        sending(CHUNK, USAGE),
        sending(USAGE),
        sending(ACCEPTED, ACCEPTED, CHUNK, USAGE),
        sending(ACCEPTED, USAGE, CHUNK),
        sending(ACCEPTED, USAGE, USAGE),
    ],
)
async def test_before_the_first_token_another_replica_answers(behave: Behaviour) -> None:
    async with lane(behave, answer) as (routed, (bad, good)):
        num_answered = 0
        while not bad.asked:
            result = await routed.ask(infer_request())
            assert (result.code, result.text) == (grpc.StatusCode.OK, "x")
            assert result.receipt is not None and result.receipt.replica == "writer-1"
            num_answered += 1
        assert len(good.asked) == num_answered
        assert routed.num_inflight == 0


@pytest.mark.parametrize(
    ("more", "then", "reason"),
    [
        ((), None, error_pb2.ERROR_REASON_REPLICA_LOST),
        ((), engine_failed("x"), error_pb2.ERROR_REASON_ENGINE_FAILED),
        ((ACCEPTED, USAGE), None, error_pb2.ERROR_REASON_REPLICA_LOST),
        ((USAGE, CHUNK), None, error_pb2.ERROR_REASON_REPLICA_LOST),
    ],
)
async def test_no_other_replica_is_asked_after_the_first_token(
    more: tuple[specialist_pb2.GenerateEvent, ...], then: Refusal | None, reason: int
) -> None:
    behave = sending(ACCEPTED, CHUNK, *more, then=then)
    async with lane(behave, behave) as (routed, (bad, worse)):
        result = await routed.ask(infer_request())
        assert (result.reason, result.text) == (reason, "x")
        assert result.receipt is not None and result.receipt.error.reason == reason
        assert len(bad.asked) + len(worse.asked) == 1


async def test_invalid_request_is_refused_without_a_retry() -> None:
    behave = refusing(invalid_field("stop", "shorter", "long"))
    async with lane(behave, behave) as (routed, (one, two)):
        result = await routed.ask(infer_request())
        assert result.code is grpc.StatusCode.INVALID_ARGUMENT
        assert len(one.asked) + len(two.asked) == 1


async def test_full_everywhere_returns_the_earliest_retry_after() -> None:
    later, sooner = refusing(queue_full("waiting", 1, 9.0)), refusing(queue_full("waiting", 1, 2.0))
    async with lane(later, sooner) as (routed, (_one, _two)):
        result = await routed.ask(infer_request())
        assert result.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert result.error is not None and result.error.retry_after_ms == 2000
        assert result.receipt is not None and len(result.receipt.attempts) == 2


async def test_retries_never_exceed_their_budget() -> None:
    behave = refusing(engine_failed("x"))
    dispatch = patient_dispatch(retry_burst=5.0)
    async with lane(behave, behave, dispatch=dispatch) as (routed, (one, two)):
        for _ in range(40):
            await routed.ask(infer_request())
        assert len(one.asked) + len(two.asked) == 45


async def test_an_answer_pays_for_the_next_retry() -> None:
    dispatch = patient_dispatch(retry_burst=1.0, retry_ratio=1.0, failures=1000)
    async with lane(refusing(engine_failed("x")), answer, dispatch=dispatch) as (routed, (bad, _good)):
        while len(bad.asked) < 4:
            assert (await routed.ask(infer_request())).code is grpc.StatusCode.OK


async def test_request_refused_for_capacity_tries_a_few_others_free_of_charge() -> None:
    full = refusing(queue_full("waiting", 1, 2.0))
    dispatch = patient_dispatch(retry_burst=0.0, max_attempts=3)
    async with lane(full, full, full, full, dispatch=dispatch) as (routed, spies):
        for _ in range(5):
            assert (await routed.ask(infer_request())).reason == error_pb2.ERROR_REASON_QUEUE_FULL
        assert sum(len(spy.asked) for spy in spies) == 15


async def test_a_share_of_requests_lost_together_is_retried_and_the_others_are_refused() -> None:
    dispatch = patient_dispatch(retry_burst=0.0, hang_seconds=3.0, heartbeat_seconds=0.1)
    queued = sending(ACCEPTED, hangs=True)
    async with lane(queued, queued, dispatch=dispatch) as (routed, (bad, good)):
        asked = [asyncio.create_task(routed.ask(infer_request())) for _ in range(26)]
        await routed.until(lambda: bad.num_live + good.num_live == 26)
        num_bad, num_good = bad.num_live, good.num_live
        good.behave, bad.reports = answer, False
        await routed.until(lambda: sum(task.done() for task in asked) == num_bad)
        result = [task.result() for task in asked if task.done()]
        lost = [each.error for each in result if each.error is not None]
        assert {error.reason for error in lost} == {error_pb2.ERROR_REASON_REPLICA_LOST}
        times = {error.retry_after_ms for error in lost}
        assert len(times) > len(lost) / 2 and all(50 <= time <= 300 for time in times), "retries must be spread"
        assert num_bad - len(lost) == len(good.asked) - num_good == 3, "15 % of all requests in flight must be retried"
        for task in asked:
            task.cancel()


async def test_a_request_that_fails_its_replicas_is_tried_twice() -> None:
    behave = refusing(engine_failed("x"))
    async with lane(behave, behave, behave) as (routed, spies):
        result = await routed.ask(infer_request())
        assert result.reason == error_pb2.ERROR_REASON_ENGINE_FAILED
        assert sum(len(spy.asked) for spy in spies) == 2


async def test_the_breaker_opens_and_lets_a_probe_through_when_it_has_cooled_down() -> None:
    dispatch = patient_dispatch(failures=2, cool_down=600, max_cool_down=600)
    async with lane(refusing(replica_failed()), answer, dispatch=dispatch) as (routed, (bad, _good)):
        while len(bad.asked) < 2:
            await routed.ask(infer_request())
        for _ in range(10):
            await routed.ask(infer_request())
        assert len(bad.asked) == 2, "an open breaker must let no request through"
        bad.behave = answer
        advance_breakers(routed, 600)
        result = []
        while len(bad.asked) <= 3:  # until one probe succeeds and the breaker closes
            result.append(await routed.ask(infer_request()))
        assert [each.receipt.breaker for each in result if each.receipt].count("half_open") == 1


async def test_a_cancelled_probe_is_followed_by_another() -> None:
    dispatch = patient_dispatch(failures=1, cool_down=600, max_cool_down=3600)
    async with lane(refusing(replica_failed()), answer, dispatch=dispatch) as (routed, (bad, _good)):
        while not bad.asked:
            await routed.ask(infer_request())
        bad.behave = hang
        advance_breakers(routed, 600)
        calls = []
        while len(bad.asked) < 2:
            calls.append(routed.generate(infer_request()))
            await asyncio.sleep(0.02)
        await routed.until(lambda: any(each.report and each.report.running for each in routed.server.fleet.replicas))
        for call in calls:
            call.cancel()
        await routed.idle()
        await routed.until(lambda: not any(each.snapshot(60.0).depth for each in routed.server.fleet.replicas))
        bad.behave = answer
        for _ in range(20):
            await routed.ask(infer_request())
        assert len(bad.asked) > 3, "the next probe must need no second cool-down"


async def test_a_cancelled_request_whose_replica_is_lost_is_not_retried() -> None:
    async with lane(hang, hang) as (routed, (one, two)):
        running = asyncio.create_task(routed.ask(infer_request()))
        await routed.until(lambda: one.num_live + two.num_live == 1)
        (live,) = routed.server.live
        (attempt,) = routed.server.pipeline.dispatcher.attempts
        attempt.abandon("it was stopped")
        live.end(cancelled())
        one.behave = two.behave = answer
        result = await running
        assert result.reason == error_pb2.ERROR_REASON_CANCELLED
        assert len(one.asked) + len(two.asked) == 1


async def test_the_last_replica_gets_requests_in_any_breaker_state() -> None:
    async with lane(refusing(replica_failed())) as (routed, (spy,)):
        for _ in range(6):
            result = await routed.ask(infer_request())
            assert result.reason == error_pb2.ERROR_REASON_REPLICA_FAILED
        assert len(spy.asked) == 6
        spy.behave = answer
        assert (await routed.ask(infer_request())).code is grpc.StatusCode.OK


async def test_unreachable_specialist_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `wait_share`, the request does not wait for a replica; it never waits for the next attempt to connect."""
    monkeypatch.setattr("router.dispatch.http2.channel._FIRST_BACKOFF_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr("router.dispatch.http2.channel._MAX_BACKOFF_SECONDS", 2 * PATIENCE)
    dispatch = patient_dispatch(wait_share=0.0)
    async with running_router({"writer": ["127.0.0.1:1"]}, warm=False, dispatch=dispatch) as routed:
        await routed.ask(infer_request())
        began = time.monotonic()
        result = await routed.ask(infer_request())
        assert time.monotonic() - began < PATIENCE, "a connection backoff takes at least 1.6 times as long"
        assert (result.code, result.reason) == (UNAVAILABLE, error_pb2.ERROR_REASON_NO_REPLICA)
        assert result.receipt is not None and result.receipt.decision.primary == "writer"


async def test_waiting_request_is_not_abandoned() -> None:
    async def slow(_: specialist_pb2.GenerateRequest, context: Context) -> None:
        await context.write(ACCEPTED)
        await asyncio.sleep(3.0)
        await context.write(CHUNK)
        await context.write(USAGE)

    async with lane(slow, slow, dispatch=patient_dispatch(stall_seconds=1.5)) as (routed, spies):
        result = await asyncio.gather(*(routed.ask(infer_request()) for _ in range(8)))
        assert {each.text for each in result} == {"x"}
        assert sum(len(spy.asked) for spy in spies) == 8
        assert {each.breaker.state for each in routed.server.fleet.replicas} == {"closed"}


async def test_a_stalled_answer_is_abandoned() -> None:
    behave = sending(ACCEPTED, CHUNK, hangs=True)
    async with lane(behave, dispatch=patient_dispatch(stall_seconds=0.5)) as (routed, (spy,)):
        result = await routed.ask(infer_request())
        assert (result.text, result.reason) == ("x", error_pb2.ERROR_REASON_REPLICA_LOST)
        await routed.until(lambda: spy.num_live == 0)


async def test_a_silent_replica_is_abandoned_soon() -> None:
    dispatch = patient_dispatch(hang_seconds=3.0)
    async with lane(sending(ACCEPTED, hangs=True), answer, dispatch=dispatch) as (routed, (bad, _good)):
        asked: list[asyncio.Task[CallResult]] = []
        while not bad.asked:
            asked.append(asyncio.create_task(routed.ask(infer_request())))
            await asyncio.sleep(0.01)
        bad.reports = False
        async with asyncio.timeout(PATIENCE):  # The deadline of the requests is later.
            result = await asyncio.gather(*asked)
        assert {each.text for each in result} == {"x"}
        bad.behave, num_asked = answer, len(bad.asked)
        await asyncio.gather(*(routed.ask(infer_request()) for _ in range(8)))
        assert len(bad.asked) == num_asked
        bad.reports = True
        await routed.until(lambda: all(each.is_usable for each in routed.server.fleet.replicas))
        await asyncio.gather(*(routed.ask(infer_request()) for _ in range(16)))
        assert len(bad.asked) > num_asked, "a replica that reports again must get requests again"


async def test_the_second_choice_answers_for_a_full_primary() -> None:
    full = refusing(queue_full("waiting", 1, 2.0))
    async with (
        running_spy(full) as bad,
        running_spy() as good,
        running_router({"writer": [bad.address], "poet": [good.address]}) as routed,
    ):
        both = infer_request(force_specialists=["writer", "poet"])
        decision = (await routed.call("Route", both, wire.Receipt)).decision
        assert (decision.primary, decision.second_choice) == ("writer", "poet")
        result = await routed.ask(both)
        assert result.receipt is not None
        assert (result.receipt.specialist, result.receipt.decision.primary) == ("poet", "writer")
        assert [each.specialist for each in result.receipt.attempts] == ["writer", "poet"]
        alone = await routed.ask(infer_request())
        assert alone.reason == error_pb2.ERROR_REASON_QUEUE_FULL


@pytest.mark.parametrize("second", [unknown_adapter("mine"), prompt_too_long(900, 512)])
async def test_final_failure_of_the_second_choice_leaves_the_primarys_refusal(second: Refusal) -> None:
    full = refusing(queue_full("waiting", 1, 2.0))
    async with (
        running_spy(full) as bad,
        running_spy(refusing(second)) as other,
        running_router({"writer": [bad.address], "poet": [other.address]}) as routed,
    ):
        result = await routed.ask(infer_request(force_specialists=["writer", "poet"]))
        assert result.reason == error_pb2.ERROR_REASON_QUEUE_FULL
        assert result.error is not None and result.error.retry_after_ms == 2000
        assert result.receipt is not None and len(result.receipt.attempts) == 2


async def test_a_specialist_has_capacity_while_one_replica_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica's refusal for lack of memory does not count against its specialist if another replica answers.
    Otherwise, the specialist would soon refuse low priorities."""
    noted: list[str] = []
    monkeypatch.setattr(SharedState, "record_demand", lambda *given: noted.append(given[-1]))
    full = refusing(queue_full("in memory", 1, 1.0))
    async with lane(full, answer) as (routed, (bad, _)):
        result = [await routed.ask(infer_request()) for _ in range(12)]
        assert {each.code for each in result} == {grpc.StatusCode.OK} and bad.asked
    assert noted == ["accepted"] * 12
    noted.clear()
    async with lane(full, full) as (routed, _):
        assert (await routed.ask(infer_request())).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert noted == ["refused"]


async def test_every_request_spills_over_to_the_second_choice() -> None:
    full = refusing(queue_full("waiting", 1, 2.0))
    dispatch = patient_dispatch(retry_burst=0.0)
    async with (
        running_spy(full) as bad,
        running_spy() as good,
        running_router({"writer": [bad.address], "poet": [good.address]}, dispatch=dispatch) as routed,
    ):
        result = [await routed.ask(infer_request(force_specialists=["writer", "poet"])) for _ in range(30)]
        assert {each.code for each in result} == {grpc.StatusCode.OK} and len(good.asked) == 30


async def test_an_answer_of_the_second_choice_refills_the_retry_budget() -> None:
    dispatch = patient_dispatch(retry_burst=1.0, retry_ratio=1.0, failures=1000)
    async with (
        running_spy(refusing(engine_failed("x"))) as bad,
        running_spy() as good,
        running_router({"writer": [bad.address], "poet": [good.address]}, dispatch=dispatch) as routed,
    ):
        result = [await routed.ask(infer_request(force_specialists=["writer", "poet"])) for _ in range(5)]
        assert {each.code for each in result} == {grpc.StatusCode.OK}


@pytest.mark.parametrize(
    ("field", "callers"),
    [
        ("chat", "prompt"),
        ("chat.messages", "prompt"),
        ("chat.messages.role", "messages.role"),
        ("text", "prompt"),
        ("stop", "stop"),
        ("context_size", "context_size"),
    ],
)
async def test_a_replicas_refusal_names_the_callers_field(field: str, callers: str) -> None:
    async with lane(refusing(invalid_field(field, "text that can be written", "context"))) as (routed, _):
        result = await routed.ask(infer_request())
        error = result.error
        assert error is not None
        assert (error.field, error.limit, error.value) == (callers, "text that can be written", "context")
        assert error.message == f"{callers} must be text that can be written, got context"


@pytest.mark.parametrize(
    ("changes", "heartbeats"), [({"failures": 5}, [250]), ({"heartbeat_seconds": 0.2}, [250, 200])]
)
async def test_reload_does_not_hide_a_hung_replica(changes: dict[str, float], heartbeats: list[int]) -> None:
    async with lane(hang) as (routed, (spy,)):
        (replica,) = routed.server.fleet.replicas
        await routed.until(lambda: replica.num_signals > 1)
        spy.reports = False
        await routed.server.reload(ensemble_of("writer", dispatch=patient_dispatch(hang_seconds=1.2, **changes)))
        await routed.until(lambda: replica.is_hung)
        assert spy.heartbeats == heartbeats
        spy.reports = True
        await routed.until(lambda: replica.is_usable)


def test_a_failed_watchdog_is_restarted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    check, num_checks = Watchdog.check, 0

    def fail_once(watchdog: Watchdog, *given: Any) -> None:
        nonlocal num_checks
        num_checks += 1
        if num_checks == 1:
            raise RuntimeError("by mistake")
        check(watchdog, *given)

    async def scenario() -> None:
        monkeypatch.setattr(Watchdog, "check", fail_once)
        async with lane(hang) as (routed, _):
            result = await routed.ask(infer_request(timeout_ms=1000))
            assert result.reason == error_pb2.ERROR_REASON_DEADLINE

    run(scenario())
    assert "the watchdog failed; restarting it" in caplog.text and "by mistake" in caplog.text


async def test_a_request_that_one_replica_could_not_read_is_sent_to_the_next() -> None:
    unread = Refusal(
        error_pb2.ERROR_REASON_DEADLINE,
        "it did not come within 20 s",
        field=UNREAD_FIELD,
    )
    async with lane(refusing(unread), refusing(unread)) as (routed, spies):
        result = await routed.ask(infer_request(timeout_ms=30_000))
        assert [len(spy.asked) for spy in spies] == [1, 1]
        assert (result.code, result.reason) == (UNAVAILABLE, error_pb2.ERROR_REASON_NO_REPLICA)
        spies[0].behave = spies[1].behave = answer
        assert (await routed.ask(infer_request())).reason == 0
