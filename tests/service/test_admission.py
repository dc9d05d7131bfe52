"""The desk behind a real socket: who is refused hears why at once, who is let in hears how long it will take."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc

from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim import CostModel
from tests.service.harness import Heard, Served, ask, asking, run, serving, sim

SLOW = CostModel(0.002, 0.002, 0.0, 0.01, 0.001, 0.0, 0.0, 0.0)
"""A decode step of one takes 11 ms."""


def long_answer(num_tokens: int, **fields: Any) -> wire.GenerateRequest:
    return asking(**{"max_tokens": num_tokens, "ignore_eos": True, **fields})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def begin(served: Served, *requests: wire.GenerateRequest) -> "list[asyncio.Task[Heard]]":
    """They are running, and have said something."""
    books = served.server.desk.books
    tasks = [asyncio.create_task(ask(served.client, request)) for request in requests]
    await until(lambda: sum(entry.generated > 0 for entry in books.running) == len(requests))
    return tasks


def error_of(heard: Heard) -> wire.Error:
    assert heard.error is not None and heard.error.error is not None, heard
    return heard.error.error


def test_an_unreachable_deadline_is_refused_with_its_arithmetic() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_verdict_does_not_wait_for_the_step_under_way() -> None:
    glacial = CostModel(0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0)

    async def scenario() -> None:
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

    run(scenario())


def test_nobody_is_made_late_by_a_later_one() -> None:
    async def scenario() -> None:
        async with serving(sim(SLOW)) as served:
            (running,) = await begin(served, long_answer(100, timeout_ms=1900))
            refused = await ask(served.client, long_answer(50, text="w" * 400, timeout_ms=60_000))
            error = error_of(refused)
            assert error.reason == wire.ERROR_REASON_WOULD_DELAY_OTHERS
            assert 0 < error.retry_after_ms <= 30_000
            heard = await running
            assert heard.error is None and len(heard.tokens) == 100

    run(scenario())


def test_a_higher_priority_has_its_way_and_the_shed_one_hears_of_it() -> None:
    async def scenario() -> None:
        async with serving(sim(SLOW)) as served:
            (running,) = await begin(served, long_answer(100, timeout_ms=1900))
            boss = await ask(served.client, long_answer(50, text="w" * 400, timeout_ms=60_000, priority=7))
            assert boss.error is None and boss.accepted is not None
            assert boss.accepted.forecast.displaced == 1 and boss.accepted.forecast.total > 0.5
            heard = await running
            error = error_of(heard)
            assert heard.usage is not None and 0 < heard.usage.completion_tokens < 100
            assert error.reason == wire.ERROR_REASON_SHED
            assert heard.error is not None and heard.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
            await served.idle()
            served.check_whole()
            assert not len(served.server.desk.books)

    run(scenario())


def test_who_is_let_in_hears_what_to_expect() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_shadow_takes_a_free_seat_only_and_gives_it_up() -> None:
    async def scenario() -> None:
        async with serving(sim(SLOW, max_running=1)) as served:
            (shadow,) = await begin(served, long_answer(300, shadow=True, priority=1000))
            report = await anext(aiter(served.client.watch_load()))
            assert report.shadows == 1 and report.revision == served.replica.lane.revision
            another = await ask(served.client, long_answer(2, shadow=True))
            assert error_of(another).reason == wire.ERROR_REASON_WOULD_DELAY_OTHERS
            caller = await ask(served.client, long_answer(5, priority=-1000))
            assert caller.error is None
            assert error_of(await shadow).reason == wire.ERROR_REASON_SHED

    run(scenario())


def test_load_reports_tell_of_refusals_waits_and_errors() -> None:
    async def scenario() -> None:
        async with serving(sim(SLOW, max_running=1), watch_seconds=0.0) as served:
            reports = aiter(served.client.watch_load())
            assert not (await anext(reports)).refusing
            tasks = await begin(served, long_answer(60))
            tasks.append(asyncio.create_task(ask(served.client, long_answer(60))))
            await until(lambda: len(served.server.desk.books) == 2)
            refused = await ask(served.client, long_answer(60, timeout_ms=800))
            assert error_of(refused).reason == wire.ERROR_REASON_DEADLINE_UNREACHABLE
            report = await anext(reports)
            while not report.refusing or not report.usual_wait:
                report = await anext(reports)
            assert 0 < report.usual_wait < 5
            assert report.HasField("estimate_error") and report.estimate_error.step_p90 > 0
            await asyncio.gather(*tasks)
            async with asyncio.timeout(20):
                while (report := await anext(reports)).refusing or not report.estimate_error.num_requests:
                    pass  # it ends by itself

    run(scenario())
