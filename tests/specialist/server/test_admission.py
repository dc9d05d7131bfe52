"""Admission over a real socket: a refusal names its reason immediately, and an admitted request gets its forecast."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from admission.forecast.bookings import Admit
from admission.forecast.controller import AdmissionController
from admission.forecast.sweep import QueueSweep
from octet.clock import ManualClock
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import SimAdapters
from specialist.engines.sim.engine import CostModel
from specialist.scheduling.loop import SHADOW_PRIORITY
from specialist.scheduling.sequence import FinishReason, Sequence
from specialist.server import preparation
from specialist.server.preparation import RequestPreparer
from tests.patience import PATIENCE
from tests.specialist.server.harness import (
    SLOW,
    ReceivedAnswer,
    ReplicaHarness,
    adapter_directory,
    ask,
    ask_and_resume,
    begin_call,
    begin_paused,
    generate_request,
    long_answer,
    running_replica,
    serving_simulated,
    sim,
    until,
)

BY_ROW = CostModel(0.002, 0.002, 0.0, 0.002, 0.012, 0.0, 0.0, 0.0)
"""A decode step of two rows takes nearly twice as long as a step of one row."""


def error_of(received: ReceivedAnswer) -> wire.Error:
    assert received.error is not None and received.error.error is not None, received
    return received.error.error


async def test_an_unreachable_deadline_is_refused_with_its_arithmetic() -> None:
    async with serving_simulated(SLOW) as (served, _):
        received = await ask(served.client, long_answer(400, timeout_ms=2000))
        assert received.accepted is None and received.error is not None
        assert received.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        error = error_of(received)
        assert error.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE and error.field == "timeout_ms"
        assert "its own 400 tokens take" in error.message and "even alone" in error.message
        assert not error.HasField("retry_after_ms"), "another attempt would not help, so there is no retry hint"
        shorter = await ask(served.client, long_answer(20, timeout_ms=2000))
        assert shorter.error is None and len(shorter.tokens) == 20


async def test_request_is_refused_if_its_first_token_would_be_late() -> None:
    async with serving_simulated(SLOW, max_running=1) as (served, clock):
        running = await begin_paused(served, clock, long_answer(200))
        refused = error_of(await ask(served.client, long_answer(5, first_token_timeout_ms=500)))
        assert refused.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE and refused.HasField("retry_after_ms")
        assert refused.field == "first_token_timeout_ms" and "its first token takes" in refused.message
        patient = await ask_and_resume(served, clock, long_answer(5, first_token_timeout_ms=30_000))
        assert patient.error is None and (await running).error is None
        alone = await ask(served.client, long_answer(150, first_token_timeout_ms=1500))
        assert alone.error is None and len(alone.tokens) == 150, "only the first token has a deadline"
        assert alone.accepted is not None and 0 < alone.accepted.forecast.slack < 1.5


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"first_token_timeout_ms": 200}, "first_token_timeout_ms"),
        ({"first_token_timeout_ms": 200, "timeout_ms": 300}, "first_token_timeout_ms"),
        ({"first_token_timeout_ms": 300, "timeout_ms": 200}, ""),
    ],
)
async def test_request_without_a_token_by_its_deadline_ends_and_names_the_deadline(
    fields: dict[str, int], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admission is patched to accept every request."""
    monkeypatch.setattr(AdmissionController, "decide", lambda *_: Admit(None))
    monkeypatch.setattr(AdmissionController, "sweep", lambda *_: QueueSweep())
    async with serving_simulated(SLOW, max_running=1) as (served, clock):
        running = await begin_paused(served, clock, long_answer(100))
        late = await ask_and_resume(served, clock, long_answer(5, **fields))
        assert late.usage is not None and late.usage.finish_reason == wire.FINISH_REASON_DEADLINE
        error = error_of(late)
        assert (error.reason, error.field) == (wire.ERROR_REASON_DEADLINE, field)
        assert (await running).error is None
        await served.idle()


async def test_a_verdict_does_not_wait_for_the_step_under_way() -> None:
    glacial = CostModel(0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0)
    async with serving_simulated(glacial, max_running=1) as (served, clock):
        running = await begin_paused(served, clock, long_answer(60))
        refused = error_of(await ask(served.client, long_answer(2, timeout_ms=2500)))
        assert refused.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE
        assert refused.retry_after_ms > 0
        assert not running.done()
        clock.resume()
        assert (await running).error is None


async def test_held_prompt_is_admitted_and_delays_no_other_request() -> None:
    async with serving_simulated(SLOW) as (served, clock):
        running = await begin_paused(served, clock, long_answer(100, timeout_ms=1900))
        later = await ask_and_resume(served, clock, long_answer(50, text="w" * 400, timeout_ms=60_000))
        assert later.error is None and len(later.tokens) == 50
        received = await running
        assert received.error is None and len(received.tokens) == 100


async def test_request_that_would_make_another_late_is_refused() -> None:
    """With a second request in the batch, every step takes nearly twice as long."""
    async with serving_simulated(BY_ROW) as (served, clock):
        running = await begin_paused(served, clock, long_answer(100, timeout_ms=2200))
        error = error_of(await ask(served.client, long_answer(100, timeout_ms=60_000)))
        assert error.reason == wire.ERROR_REASON_WOULD_DELAY_OTHERS
        assert 0 < error.retry_after_ms <= 30_000
        clock.resume()
        received = await running
        assert received.error is None and len(received.tokens) == 100


async def test_higher_priority_sheds_a_request_and_its_caller_gets_the_reason() -> None:
    async with serving_simulated(SLOW) as (served, clock):
        running = await begin_paused(served, clock, long_answer(100, timeout_ms=1900))
        urgent = long_answer(50, text="w" * 400, timeout_ms=60_000, priority=7)
        higher = await ask_and_resume(served, clock, urgent)
        assert higher.error is None and higher.accepted is not None
        assert higher.accepted.forecast.displaced == 1 and higher.accepted.forecast.total > 0.5
        received = await running
        error = error_of(received)
        assert received.usage is not None and 0 < received.usage.completion_tokens < 100
        assert error.reason == wire.ERROR_REASON_SHED and 0 < error.retry_after_ms <= 30_000
        assert received.error is not None and received.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        await served.idle()
        served.check_whole()
        assert not len(served.server.controller.bookings)


def record_ends(served: ReplicaHarness) -> list[int]:
    """Return a list. When a request ends, its priority is added to the list."""
    ledger, ended = served.replica.scheduler.ledger, list[int]()
    finish = ledger.finish

    def recorded(seq: Sequence, reason: FinishReason, detail: str = "") -> bool:
        ended.append(seq.request.priority)
        return finish(seq, reason, detail)

    ledger.finish = recorded  # type: ignore[method-assign]
    return ended


async def test_request_without_a_deadline_is_suspended_and_loses_nothing() -> None:
    async with serving_simulated(BY_ROW) as (served, clock):
        patient = long_answer(90, seed=3)
        alone = await ask(served.client, patient)
        assert alone.usage is not None
        # Milliseconds: too short if another row shares the steps.
        enough_alone = round(1000 * 60 * 1.5 * alone.usage.timings.decode / 90)
        waiting = await begin_paused(served, clock, patient)
        ended = record_ends(served)
        higher = await ask_and_resume(served, clock, long_answer(60, timeout_ms=enough_alone, priority=7))
        assert higher.error is None and higher.accepted is not None
        forecast = higher.accepted.forecast
        assert (forecast.displaced, forecast.set_aside) == (0, 1)
        received = await waiting
        assert ended == [7, 0]
        assert received.error is None and received.tokens == alone.tokens
        assert received.usage is not None and received.usage.times_preempted >= 1
        await served.idle()
        served.check_whole()
        assert not served.server.controller.bookings.num_live


async def test_admitted_request_gets_its_forecast() -> None:
    async with serving_simulated(SLOW) as (served, clock):
        begun = clock.now()
        received = await ask(served.client, long_answer(50, timeout_ms=20_000))
        took = clock.now() - begun
        assert received.accepted is not None
        forecast = received.accepted.forecast
        assert forecast.wait == 0 and 0.4 < forecast.total < took * 1.2
        assert abs(forecast.slack + forecast.total - 20) < 0.5
        without = await ask(served.client, long_answer(5))
        assert without.accepted is not None and not without.accepted.forecast.HasField("slack")


async def test_a_shadow_takes_only_a_free_slot_and_is_shed_for_a_request() -> None:
    async with serving_simulated(SLOW, max_running=1) as (served, clock):
        shadow = await begin_paused(served, clock, long_answer(300, shadow=True, priority=1000))
        assert [entry.priority for entry in served.server.controller.bookings.active] == [SHADOW_PRIORITY]
        assert {seq.request.priority for seq in served.replica.scheduler.running} == {SHADOW_PRIORITY}
        report = await anext(aiter(served.client.watch_load()))
        assert report.shadows == 1 and report.revision == served.replica.lane.revision
        another = await ask(served.client, long_answer(2, shadow=True))
        assert error_of(another).reason == wire.ERROR_REASON_WOULD_DELAY_OTHERS
        caller = await ask_and_resume(served, clock, long_answer(5, priority=-1000))
        assert caller.error is None
        assert error_of(await shadow).reason == wire.ERROR_REASON_SHED


async def test_load_reports_contain_refusals_waits_and_errors() -> None:
    async with serving_simulated(SLOW, max_running=1, watch_seconds=0.0) as (served, clock):
        reports = aiter(served.client.watch_load())
        assert not (await anext(reports)).refusing
        tasks = [await begin_paused(served, clock, long_answer(100)), begin_call(served, long_answer(100))]
        await until(lambda: len(served.server.controller.bookings) == 2)
        refused = await ask(served.client, long_answer(60, timeout_ms=800))
        assert error_of(refused).reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE
        ManualClock.sleep(clock, 0.1)  # Reports repeat their figures for a shorter time.
        clock.allow_step()
        async with asyncio.timeout(PATIENCE):
            report = await anext(reports)
            while not report.refusing or not report.usual_wait:
                report = await anext(reports)
        assert 0 < report.usual_wait < 5
        assert report.HasField("estimate_error") and report.estimate_error.step_p90 > 0
        clock.resume()
        await asyncio.gather(*tasks)
        ManualClock.sleep(clock, 2.0)  # The refusal has expired; only another request makes the replica report again.
        await ask(served.client, long_answer(1))
        async with asyncio.timeout(PATIENCE):
            while (report := await anext(reports)).refusing or not report.estimate_error.num_requests:
                pass


async def test_a_shadow_does_not_count_against_a_request() -> None:
    async with serving_simulated(SLOW, num_blocks=512) as (served, clock):
        for _ in range(10):
            served.server.controller.lengths.add(300, cut=False)
        shadow = await begin_paused(served, clock, long_answer(400, shadow=True, priority=1000))
        received = await ask_and_resume(served, clock, generate_request(max_tokens=400, timeout_ms=2000))
        assert received.accepted is not None
        shadow.cancel()
        await asyncio.gather(shadow, return_exceptions=True)


async def test_shed_request_gets_a_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_simulated(SLOW, max_running=1) as (served, clock):
        running = await begin_paused(served, clock, long_answer(300))
        waiting = begin_call(served, long_answer(5, timeout_ms=60_000))
        controller = served.server.controller
        await until(lambda: len(controller.bookings) == 2)
        waits = tuple(entry.booking.key for entry in controller.bookings.line)
        monkeypatch.setattr(controller, "sweep", lambda now: QueueSweep(shed=waits))

        def is_shed() -> bool:
            clock.allow_step()
            return waiting.done()

        await until(is_shed)
        error = error_of(await waiting)
        assert error.reason == wire.ERROR_REASON_SHED and 0 < error.retry_after_ms <= 30_000
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_deadline_that_passes_during_tokenising_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = RequestPreparer._encode

    def slow(self: RequestPreparer, prompt: Any) -> tuple[int, ...]:
        time.sleep(0.2)
        return encode(self, prompt)

    monkeypatch.setattr(RequestPreparer, "_encode", slow)
    async with running_replica(sim(SLOW)) as served:
        received = await ask(served.client, long_answer(2, timeout_ms=50))
        assert received.error is not None and received.error.code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert error_of(received).reason == wire.ERROR_REASON_DEADLINE


async def test_a_prompt_is_not_tokenised_if_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_simulated(SLOW, max_running=1, max_waiting=1) as (served, clock):
        running = await begin_paused(served, clock, long_answer(200))
        waiting = begin_call(served, long_answer(5))
        await until(lambda: len(served.server.controller.bookings) == 2)
        counted: list[object] = []
        monkeypatch.setattr(RequestPreparer, "_encode", lambda self, prompt: counted.append(prompt))
        error = error_of(await ask(served.client, long_answer(5)))
        assert error.reason == wire.ERROR_REASON_QUEUE_FULL and error.retry_after_ms > 0
        assert counted == []
        clock.resume()
        await asyncio.gather(running, waiting)


async def test_forecast_includes_the_step_under_way() -> None:
    glacial = CostModel(0.0, 0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0)
    async with serving_simulated(glacial) as (served, clock):
        running = await begin_paused(served, clock, long_answer(40))
        received = await ask_and_resume(served, clock, long_answer(1))
        assert received.accepted is not None and received.accepted.forecast.wait > 0.1
        assert (await running).error is None


async def test_repeated_request_is_recognised_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_replica(sim(SLOW)) as served:
        controller, asked = served.server.controller, list[str]()
        judge = controller.decide

        def kept(booking: Any, now: float) -> Any:
            asked.append(booking.caller)
            return judge(booking, now)

        monkeypatch.setattr(controller, "decide", kept)
        for request_id, salt in [("a", b"x"), ("a", b"x"), ("a", b"y"), ("b", b"x"), ("", b"x")]:
            await ask(served.client, long_answer(1, request_id=request_id, tenant_salt=salt))
        first, again, other_tenant, other, nameless = asked
        assert first == again and nameless == ""
        assert len({first, other_tenant, other, nameless}) == 4


async def test_a_lease_does_not_outlive_a_request_that_could_not_be_booked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("an unexpected error")

    async with running_replica(sim(SLOW)) as served:
        adapters = served.replica.adapters
        assert isinstance(adapters, SimAdapters)
        adapters.load("style", adapter_directory(tmp_path, "style"))
        monkeypatch.setattr(preparation, "peek_prefix_hits", broken)
        received = await ask(served.client, long_answer(2, adapters=["style"]))
        assert received.error is not None and adapters.num_in_use == 0
