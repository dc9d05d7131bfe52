"""The event loop with simulated time, and the processes that share it."""

import asyncio
import gc
from contextvars import Context

import pytest

from simulation.event_loop import PROCESS, HeapLoop, LoopStuck, Process


def test_time_jumps_from_event_to_event() -> None:
    loop = HeapLoop()
    began = loop.time()

    async def work() -> list[float]:
        slept = asyncio.gather(*(asyncio.sleep(seconds, seconds) for seconds in (3600.0, 0.5, 86_400.0)))
        await asyncio.sleep(1.0)
        assert loop.time() - began == 1.0
        return await slept

    assert loop.run_until_complete(work()) == [3600.0, 0.5, 86_400.0]
    assert loop.time() - began == 86_400.0
    loop.close()


def test_events_at_the_same_time_keep_their_order() -> None:
    loop, said = HeapLoop(), list[int]()

    async def work() -> None:
        for number in range(20):
            loop.call_later(1.0, said.append, number)
        await asyncio.sleep(1.0)

    loop.run_until_complete(work())
    assert said == list(range(20))
    loop.close()


def test_waiting_without_any_event_raises() -> None:
    loop = HeapLoop()
    waiting = loop.create_future()
    with pytest.raises(LoopStuck):
        loop.run_until_complete(waiting)
    loop.close()


def test_a_timeout_and_a_thread() -> None:
    loop = HeapLoop()

    async def work() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.Event().wait()
        return await asyncio.to_thread(lambda: 7)

    assert loop.run_until_complete(work()) == 7
    loop.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_process_does_nothing_while_it_is_stopped_and_nothing_more_once_it_is_dead(end: str) -> None:
    loop, process = HeapLoop(), Process("victim")
    said: list[float] = []
    began = loop.time()

    async def beat() -> None:
        try:
            while True:
                await asyncio.sleep(1.0)
                said.append(loop.time() - began)
        finally:
            said.append(-1.0)

    async def work() -> None:
        task = loop.create_task(beat(), context=process.context.copy())
        await asyncio.sleep(2.5)
        getattr(process, end)()
        await asyncio.sleep(5.0)
        assert said == [1.0, 2.0]
        loop.resume(process)
        await asyncio.sleep(1.2)
        assert said == ([1.0, 2.0, 7.5, 8.5] if end == "stop" else [1.0, 2.0])
        task.cancel()
        await asyncio.sleep(0)

    loop.run_until_complete(work())
    assert (-1.0 in said) == (end == "stop")
    loop.cancel_all()
    loop.close()


def test_a_task_without_a_process_is_not_adopted_by_the_process_that_wakes_it() -> None:
    """The task has an empty context. Such a context is falsy, but the loop must still use it."""
    loop, process = HeapLoop(), Process("waker")
    found: list[Process | None] = []

    async def wait_for(other: asyncio.Future[None]) -> None:
        await other
        found.append(PROCESS.get())
        await asyncio.sleep(1.0)
        found.append(PROCESS.get())

    async def wake(other: asyncio.Future[None]) -> None:
        await asyncio.sleep(1.0)
        other.set_result(None)

    other: asyncio.Future[None] = loop.create_future()
    loop.create_task(wake(other), context=process.context.copy())
    loop.run_until_complete(loop.create_task(wait_for(other), context=Context()))
    assert found == [None, None]
    loop.close()


def test_an_unhandled_error_is_kept() -> None:
    loop = HeapLoop()

    async def work() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1.0)

    loop.run_until_complete(work())
    assert [type(complaint["exception"]) for complaint in loop.errors] == [ZeroDivisionError]
    loop.close()


def test_no_process_is_charged_for_garbage_collection() -> None:
    loop = HeapLoop()
    loop.cpu_seconds = {}
    kept = [[number] for number in range(300_000)]
    gc.callbacks.append(loop.count_collection)
    try:
        loop.call_soon(gc.collect)
        loop.run_forever()
    finally:
        gc.callbacks.remove(loop.count_collection)
        loop.close()
    assert len(kept) == 300_000 and loop.collected_seconds > 0
    assert loop.cpu_seconds[""] < loop.collected_seconds / 2
