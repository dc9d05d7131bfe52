"""The controller behind a real socket: who is refused hears why at once, who is let in hears how long it will take."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from admission.forecast.bookings import Admit
from admission.forecast.controller import AdmissionController
from admission.forecast.forecast import QueueSweep
from octet.v1 import specialist_pb2 as wire
from specialist.adapters.catalog import SimAdapters
from specialist.engines.sim.engine import CostModel
from specialist.scheduling.loop import SHADOW_PRIORITY
from specialist.server import preparation
from specialist.server.preparation import RequestPreparer
from tests.specialist.server.harness import Heard, Served, adapter_directory, ask, asking, serving, sim

SLOW = CostModel(0.002, 0.002, 0.0, 0.01, 0.001, 0.0, 0.0, 0.0)
BY_ROW = CostModel(0.002, 0.002, 0.0, 0.002, 0.012, 0.0, 0.0, 0.0)
"""Two take nearly twice as long as one."""
"""A decode step of one takes 11 ms."""


def long_answer(num_tokens: int, **fields: Any) -> wire.GenerateRequest:
    return asking(**{"max_tokens": num_tokens, "ignore_eos": True, **fields})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def begin(served: Served, *requests: wire.GenerateRequest) -> "list[asyncio.Task[Heard]]":
    """Until they run and have sent a chunk."""
    books = served.server.controller.bookings
    tasks = [asyncio.create_task(ask(served.client, request)) for request in requests]
    await until(lambda: sum(entry.generated > 0 for entry in books.running) == len(requests))
    return tasks


def error_of(heard: Heard) -> wire.Error:
    assert heard.error is not None and heard.error.error is not None, heard
    return heard.error.error


async def test_an_unreachable_deadline_is_refused_with_its_arithmetic() -> None:
    async with serving(sim(SLOW)) as served:
        heard = await ask(served.client, long_answer(400, timeout_ms=2000))
        assert heard.accepted is None and heard.error is not None
        assert heard.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        error = error_of(heard)
        assert error.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE and error.field == "timeout_ms"
        assert "its own 400 tokens take" in error.message and "even alone" in error.message
        assert not error.HasField("retry_after_ms"), "another try would not help"
        shorter = await ask(served.client, long_answer(20, timeout_ms=2000))
        assert shorter.error is None and len(shorter.tokens) == 20


async def test_a_first_token_that_would_come_too_late_is_refused_and_one_that_does_ends_the_request() -> None:
    async with serving(sim(SLOW, max_running=1)) as served:
        (running,) = await begin(served, long_answer(200))
        began = time.monotonic()
        refused = error_of(await ask(served.client, long_answer(5, first_token_timeout_ms=500)))
        assert refused.reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE and refused.HasField("retry_after_ms")
        assert refused.field == "first_token_timeout_ms" and "its first token takes" in refused.message
        patient = ask(served.client, long_answer(5, first_token_timeout_ms=30_000))
        assert time.monotonic() - began < 1.0
        assert (await patient).error is None
        alone = long_answer(150, first_token_timeout_ms=1500)
        heard = await ask(served.client, alone)
        assert heard.error is None and len(heard.tokens) == 150, "its first token was in time, the rest may take"
        assert heard.accepted is not None and 0 < heard.accepted.forecast.slack < 1.5
        assert (await running).error is None


async def test_request_without_a_token_by_its_deadline_ends_and_names_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The forecast was wrong and admitted every request."""
    monkeypatch.setattr(AdmissionController, "decide", lambda *_: Admit(None))
    monkeypatch.setattr(AdmissionController, "sweep", lambda *_: QueueSweep())
    async with serving(sim(SLOW, max_running=1)) as served:
        (running,) = await begin(served, long_answer(100))
        for fields in ({}, {"timeout_ms": 300}):
            heard = await ask(served.client, long_answer(5, first_token_timeout_ms=200, **fields))
            assert heard.usage is not None and heard.usage.finish_reason == wire.FINISH_REASON_DEADLINE
            error = error_of(heard)
            assert (error.reason, error.field) == (wire.ERROR_REASON_DEADLINE, "first_token_timeout_ms")
        sooner = error_of(await ask(served.client, long_answer(5, first_token_timeout_ms=300, timeout_ms=200)))
        assert (sooner.reason, sooner.field) == (wire.ERROR_REASON_DEADLINE, "")
        assert (await running).error is None
        await served.idle()


async def test_a_verdict_does_not_wait_for_the_step_under_way() -> None:
    glacial = CostModel(0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0)
    async with serving(sim(glacial, max_running=1)) as served:
        (running,) = await begin(served, long_answer(6))
        quickest = 1.0
        for _ in range(5):
            asked_at = time.monotonic()
            refused = await ask(served.client, long_answer(2, timeout_ms=1000))
            quickest = min(quickest, time.monotonic() - asked_at)
            assert error_of(refused).reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE
            assert error_of(refused).retry_after_ms > 0
        assert quickest < 0.2, "a step takes half a second"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_held_prompt_is_admitted_and_delays_no_other_request() -> None:
    async with serving(sim(SLOW)) as served:
        (running,) = await begin(served, long_answer(100, timeout_ms=1900))
        later = await ask(served.client, long_answer(50, text="w" * 400, timeout_ms=60_000))
        assert later.error is None and len(later.tokens) == 50
        heard = await running
        assert heard.error is None and len(heard.tokens) == 100


async def test_a_later_request_that_would_make_another_late_is_refused() -> None:
    """Beside it, every step takes nearly twice as long."""
    async with serving(sim(BY_ROW)) as served:
        (running,) = await begin(served, long_answer(100, timeout_ms=2200))
        refused = await ask(served.client, long_answer(100, timeout_ms=60_000))
        error = error_of(refused)
        assert error.reason == wire.ERROR_REASON_WOULD_DELAY_OTHERS
        assert 0 < error.retry_after_ms <= 30_000
        heard = await running
        assert heard.error is None and len(heard.tokens) == 100


async def test_a_higher_priority_has_its_way_and_the_shed_one_hears_of_it() -> None:
    async with serving(sim(SLOW)) as served:
        (running,) = await begin(served, long_answer(100, timeout_ms=1900))
        boss = await ask(served.client, long_answer(50, text="w" * 400, timeout_ms=60_000, priority=7))
        assert boss.error is None and boss.accepted is not None
        assert boss.accepted.forecast.displaced == 1 and boss.accepted.forecast.total > 0.5
        heard = await running
        error = error_of(heard)
        assert heard.usage is not None and 0 < heard.usage.completion_tokens < 100
        assert error.reason == wire.ERROR_REASON_SHED and 0 < error.retry_after_ms <= 30_000
        assert heard.error is not None and heard.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        await served.idle()
        served.check_whole()
        assert not len(served.server.controller.bookings)


async def test_request_without_a_deadline_is_suspended_and_loses_nothing() -> None:
    async with serving(sim(BY_ROW)) as served:
        patient = long_answer(90, seed=3)
        alone = await ask(served.client, patient)
        assert alone.usage is not None
        enough_alone = round(1000 * 60 * 1.5 * alone.usage.timings.decode / 90)  # and too little with another row
        (waiting,) = await begin(served, patient)
        boss = await ask(served.client, long_answer(60, timeout_ms=enough_alone, priority=7))
        assert boss.error is None and boss.accepted is not None
        forecast = boss.accepted.forecast
        assert (forecast.displaced, forecast.set_aside) == (0, 1)
        assert not waiting.done()
        heard = await waiting
        assert heard.error is None and heard.tokens == alone.tokens
        assert heard.usage is not None and heard.usage.times_preempted >= 1
        await served.idle()
        served.check_whole()
        assert not served.server.controller.bookings.num_live


async def test_admitted_request_gets_its_forecast() -> None:
    async with serving(sim(SLOW)) as served:
        begun = time.monotonic()
        heard = await ask(served.client, long_answer(50, timeout_ms=20_000))
        took = time.monotonic() - begun
        assert heard.accepted is not None
        forecast = heard.accepted.forecast
        assert forecast.wait == 0 and 0.4 < forecast.total < took * 1.2
        assert abs(forecast.slack + forecast.total - 20) < 0.5
        without = await ask(served.client, long_answer(5))
        assert without.accepted is not None and not without.accepted.forecast.HasField("slack")


async def test_a_shadow_takes_a_free_seat_only_and_gives_it_up() -> None:
    async with serving(sim(SLOW, max_running=1)) as served:
        (shadow,) = await begin(served, long_answer(300, shadow=True, priority=1000))
        assert [entry.priority for entry in served.server.controller.bookings.active] == [SHADOW_PRIORITY]
        assert {seq.request.priority for seq in served.replica.scheduler.running} == {SHADOW_PRIORITY}
        report = await anext(aiter(served.client.watch_load()))
        assert report.shadows == 1 and report.revision == served.replica.lane.revision
        another = await ask(served.client, long_answer(2, shadow=True))
        assert error_of(another).reason == wire.ERROR_REASON_WOULD_DELAY_OTHERS
        caller = await ask(served.client, long_answer(5, priority=-1000))
        assert caller.error is None
        assert error_of(await shadow).reason == wire.ERROR_REASON_SHED


async def test_load_reports_tell_of_refusals_waits_and_errors() -> None:
    async with serving(sim(SLOW, max_running=1), watch_seconds=0.0) as served:
        reports = aiter(served.client.watch_load())
        assert not (await anext(reports)).refusing
        tasks = await begin(served, long_answer(60))
        tasks.append(asyncio.create_task(ask(served.client, long_answer(60))))
        await until(lambda: len(served.server.controller.bookings) == 2)
        refused = await ask(served.client, long_answer(60, timeout_ms=800))
        assert error_of(refused).reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE
        report = await anext(reports)
        while not report.refusing or not report.usual_wait:
            report = await anext(reports)
        assert 0 < report.usual_wait < 5
        assert report.HasField("estimate_error") and report.estimate_error.step_p90 > 0
        await asyncio.gather(*tasks)
        async with asyncio.timeout(60):
            while (report := await anext(reports)).refusing or not report.estimate_error.num_requests:
                pass  # it ends by itself


async def test_a_lone_caller_is_served_beside_a_shadow_as_if_it_were_not_there() -> None:
    async with serving(sim(SLOW, num_blocks=512)) as served:
        for _ in range(10):
            served.server.controller.lengths.add(300, cut=False)
        (shadow,) = await begin(served, long_answer(400, shadow=True, priority=1000))
        heard = await ask(served.client, asking(max_tokens=400, timeout_ms=2000))
        assert heard.accepted is not None
        shadow.cancel()
        await asyncio.gather(shadow, return_exceptions=True)


async def test_shed_request_gets_a_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(sim(SLOW, max_running=1)) as served:
        (running,) = await begin(served, long_answer(300))
        waiting = asyncio.create_task(ask(served.client, long_answer(5, timeout_ms=60_000)))
        controller = served.server.controller
        await until(lambda: len(controller.bookings) == 2)
        waits = tuple(entry.booking.key for entry in controller.bookings.line)
        monkeypatch.setattr(controller, "sweep", lambda now: QueueSweep(shed=waits))
        error = error_of(await waiting)
        assert error.reason == wire.ERROR_REASON_SHED and 0 < error.retry_after_ms <= 30_000
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_deadline_that_passes_while_words_are_counted_is_past(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = RequestPreparer._encode

    def slow(self: RequestPreparer, prompt: Any) -> tuple[int, ...]:
        time.sleep(0.2)
        return encode(self, prompt)

    monkeypatch.setattr(RequestPreparer, "_encode", slow)
    async with serving(sim(SLOW)) as served:
        heard = await ask(served.client, long_answer(2, timeout_ms=50))
        assert heard.error is not None and heard.error.code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert error_of(heard).reason == wire.ERROR_REASON_DEADLINE


async def test_nothing_is_tokenised_for_a_full_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(sim(SLOW, max_running=1), max_waiting=1) as served:
        tasks = await begin(served, long_answer(200))
        tasks.append(asyncio.create_task(ask(served.client, long_answer(5))))
        await until(lambda: len(served.server.controller.bookings) == 2)
        counted: list[object] = []
        monkeypatch.setattr(RequestPreparer, "_encode", lambda self, prompt: counted.append(prompt))
        error = error_of(await ask(served.client, long_answer(5)))
        assert error.reason == wire.ERROR_REASON_QUEUE_FULL and error.retry_after_ms > 0
        assert counted == []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_forecast_includes_the_step_under_way() -> None:
    glacial = CostModel(0.0, 0.0, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0)
    async with serving(sim(glacial)) as served:
        (running,) = await begin(served, long_answer(40))
        heard = [await ask(served.client, long_answer(1)) for _ in range(4)]
        waits = [each.accepted.forecast.wait for each in heard if each.accepted is not None]
        assert max(waits) > 0.1, "somebody comes in the first two thirds of a step"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_repeated_request_is_recognised_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(sim(SLOW)) as served:
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
        raise RuntimeError("nobody knows why")

    async with serving(sim(SLOW)) as served:
        adapters = served.replica.adapters
        assert isinstance(adapters, SimAdapters)
        adapters.load("style", adapter_directory(tmp_path, "style"))
        monkeypatch.setattr(preparation, "peek_prefix_hits", broken)
        heard = await ask(served.client, long_answer(2, adapters=["style"]))
        assert heard.error is not None and adapters.num_in_use == 0
