"""The classifier runs off the event loop, once for each distinct text, and delays no request beyond its limit."""

import asyncio
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from math import nan
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.clock import ManualClock, SystemClock
from octet.config.ensemble import REJECT
from router.routing.classifier.base import LIMIT, ClassifierUnavailable, Distribution
from router.routing.classifier.queue import ClassifierQueue
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]
SHORT, LONGER = 0.03, 0.2


def expected_distribution(text: str) -> Distribution:
    share = sha256(text.encode()).digest()[0] / 512
    return Distribution(((REJECT, 1 - share), ("algo", share)))


class Recorder:
    """A classifier that returns `expected_distribution` of each text, and records the batches."""

    digest = "d" * 64
    labels = ("algo", REJECT)

    def __init__(self) -> None:
        self.batches: list[tuple[str, ...]] = []
        self.threads: set[threading.Thread] = set()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def asked(self) -> list[str]:
        return [text for batch in self.batches for text in batch]

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        self.batches.append(tuple(texts))
        self.threads.add(threading.current_thread())
        self.gate.wait(PATIENCE)
        return [expected_distribution(text) for text in texts]


class BrokenClassifier(Recorder):
    def __init__(self, answer: Callable[[Sequence[str]], Any]) -> None:
        super().__init__()
        self.answer: Callable[[Sequence[str]], Any] | None = answer

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        right = super().classify(texts)
        return right if self.answer is None else self.answer(texts)


def run_with_queue(
    recorder: Recorder,
    scenario: Callable[[ClassifierQueue], Coroutine[Any, Any, None]],
    clock: ManualClock | SystemClock | None = None,
    **options: Any,
) -> None:
    """Run the scenario with a queue. Then release every thread and check that all of them end."""

    async def run() -> None:
        queue = ClassifierQueue(recorder, clock or SystemClock(), **{"timeout": PATIENCE, **options})
        try:
            await scenario(queue)
        finally:
            queue.close()

    try:
        asyncio.run(run())
    finally:
        recorder.gate.set()
    for thread in recorder.threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


def counted_deliveries() -> Callable[[], int]:
    """Count the callbacks that threads schedule on the running loop from now on. Return a function that returns the
    count."""
    loop, num_calls = asyncio.get_running_loop(), 0
    deliver = loop.call_soon_threadsafe

    def count(*args: Any, **options: Any) -> asyncio.Handle:
        nonlocal num_calls
        num_calls += 1
        return deliver(*args, **options)

    loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]
    return lambda: num_calls


async def unavailable(queue: ClassifierQueue, text: str) -> str:
    with pytest.raises(ClassifierUnavailable) as caught:
        await queue.classify(text)
    return str(caught.value)


TEXTS = st.text(max_size=3) | st.builds(lambda letter: letter * (2 * LIMIT), st.sampled_from("abc"))


@settings(max_examples=50)
@given(st.lists(TEXTS, max_size=20), st.integers(1, 5))
def test_every_caller_gets_the_distribution_and_no_text_is_computed_twice(texts: list[str], most: int) -> None:
    recorder = Recorder()

    async def scenario(queue: ClassifierQueue) -> None:
        answers = await asyncio.gather(*(queue.classify(text) for text in texts))
        assert answers == [expected_distribution(text) for text in texts]
        assert [queue.cached(text) for text in texts] == answers

    run_with_queue(recorder, scenario, max_batch=most)
    assert sorted(recorder.asked) == sorted(set(texts))
    assert all(1 <= len(batch) <= most for batch in recorder.batches)
    assert threading.main_thread() not in recorder.threads
    assert len(recorder.threads) <= 1


@settings(max_examples=50)
@given(st.lists(st.sampled_from("abcdef"), max_size=30), st.integers(0, 4))
def test_the_cache_drops_the_least_recently_used_text(texts: list[str], size: int) -> None:
    recorder = Recorder()
    model: OrderedDict[str, None] = OrderedDict()
    misses = []
    for text in texts:
        if text not in model:
            misses.append(text)
        model[text] = None
        model.move_to_end(text)
        if len(model) > size:
            model.popitem(last=False)

    async def scenario(queue: ClassifierQueue) -> None:
        for text in texts:
            assert await queue.classify(text) == expected_distribution(text)
        assert {text for text in "abcdef" if queue.cached(text)} == set(model)

    run_with_queue(recorder, scenario, cache=size)
    assert recorder.asked == misses


def test_a_hit_never_leaves_the_loop() -> None:
    async def scenario(queue: ClassifierQueue) -> None:
        await queue.classify("text")
        with pytest.raises(StopIteration) as returned:
            queue.classify("text").send(None)
        assert returned.value.value == expected_distribution("text")

    run_with_queue(Recorder(), scenario)


def test_text_outside_the_sample_makes_no_difference() -> None:
    recorder = Recorder()
    long = "x" * 1_000_000
    other = long[:400_000] + "y" + long[400_001:]

    async def scenario(queue: ClassifierQueue) -> None:
        assert await queue.classify(long) is await queue.classify(other)
        assert await queue.classify("y" + long[1:]) != expected_distribution(long)

    run_with_queue(recorder, scenario)
    assert len(recorder.asked) == 2


def test_waiting_texts_are_one_batch_with_one_delivery() -> None:
    recorder = Recorder()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        calls = counted_deliveries()
        first = asyncio.create_task(queue.classify("first"))
        await until(lambda: recorder.batches)
        rest = [asyncio.create_task(queue.classify(str(n % 10))) for n in range(30)]
        await until(lambda: queue.num_waiting == 10)
        recorder.gate.set()
        await asyncio.gather(first, *rest)
        assert [len(batch) for batch in recorder.batches] == [1, 8, 2]
        assert calls() == 3

    run_with_queue(recorder, scenario, max_batch=8)


def test_full_queue_refuses_at_once() -> None:
    recorder = Recorder()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        tasks = [asyncio.create_task(queue.classify(str(n))) for n in range(6)]
        await until(lambda: queue.num_waiting == 5)
        assert "5 texts are queued" in await unavailable(queue, "one too many")
        joining = asyncio.create_task(queue.classify("3"))
        recorder.gate.set()
        await asyncio.gather(joining, *tasks)

    run_with_queue(recorder, scenario, max_waiting=5)


def test_a_stall_delays_neither_caller_nor_loop_and_its_late_result_is_cached() -> None:
    recorder = Recorder()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        began = time.monotonic()
        asking = asyncio.create_task(unavailable(queue, "slow"))
        await until(lambda: recorder.batches)
        for _ in range(10):
            await asyncio.sleep(0)
        assert "longer than 30 ms" in await asking
        assert time.monotonic() - began < PATIENCE / 2, "the classifier stalls twice as long"
        recorder.gate.set()
        await until(lambda: queue.cached("slow"))
        assert await queue.classify("slow") == expected_distribution("slow")
        assert recorder.asked == ["slow"]

    run_with_queue(recorder, scenario, timeout=SHORT)


def test_a_waiting_text_has_the_same_time_limit_and_does_not_count_as_a_failure() -> None:
    recorder = Recorder()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        began = time.monotonic()
        await asyncio.gather(*(unavailable(queue, str(n)) for n in range(5)))
        assert time.monotonic() - began < PATIENCE / 2, "the classifier stalls twice as long"
        assert queue.num_waiting == 0
        queue._timeout = PATIENCE
        recorder.gate.set()
        await until(lambda: queue.cached("0"))
        assert await queue.classify("after") == expected_distribution("after")

    run_with_queue(recorder, scenario, timeout=LONGER, max_batch=1, failures=4)


@pytest.mark.parametrize(
    "answer",
    [
        lambda texts: [],
        lambda texts: [expected_distribution(text) for text in (*texts, "more")],
        lambda texts: None,
        lambda texts: ["algo"] * len(texts),
        lambda texts: [Distribution((("stranger", 1.0),))] * len(texts),
        lambda texts: [Distribution((("algo", nan), (REJECT, nan)))] * len(texts),
        lambda texts: [Distribution((("algo", 0.9), (REJECT, 0.2)))] * len(texts),
        lambda texts: 1 / 0,
        lambda texts: sys.exit(3),
        lambda texts: [Distribution((("stranger" * 1000, 1.0),))] * len(texts),
    ],
)
def test_invalid_results_are_failures_that_open_the_breaker(answer: Callable[[Sequence[str]], Any]) -> None:
    broken, clock = BrokenClassifier(answer), ManualClock()

    async def scenario(queue: ClassifierQueue) -> None:
        for n in range(3):
            assert len(await unavailable(queue, str(n))) < 300
        assert queue.cached("0") is None
        assert "paused" in await unavailable(queue, "open")
        assert len(broken.batches) == 3
        clock.sleep(1.0)
        await unavailable(queue, "probe")
        clock.sleep(1.9)
        assert "paused" in await unavailable(queue, "twice as long")
        assert len(broken.batches) == 4
        clock.sleep(0.1)
        broken.answer = None
        assert await queue.classify("well again") == expected_distribution("well again")
        broken.answer = answer
        await unavailable(queue, "once")
        broken.answer = None
        assert await queue.classify("still closed") == expected_distribution("still closed")

    run_with_queue(broken, scenario, clock, failures=3, cool_down=1.0, max_cool_down=8.0)


def test_a_failing_text_does_not_fail_its_batch() -> None:
    broken = BrokenClassifier(lambda texts: [expected_distribution(text) for text in texts if text != "poison"])
    broken.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        first = asyncio.create_task(queue.classify("first"))
        await until(lambda: broken.batches)
        poisoned = asyncio.create_task(unavailable(queue, "poison"))
        others = [asyncio.create_task(queue.classify(text)) for text in "abc"]
        await until(lambda: queue.num_waiting == 4)
        broken.gate.set()
        assert await asyncio.gather(*others) == [expected_distribution(text) for text in "abc"]
        assert "0 distributions" in await poisoned
        assert await first == expected_distribution("first")
        assert await queue.classify("after") == expected_distribution("after")

    run_with_queue(broken, scenario, failures=1)


def test_waiters_fail_at_once_when_the_breaker_opens() -> None:
    broken = BrokenClassifier(lambda texts: [])
    broken.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        tasks = [asyncio.create_task(unavailable(queue, str(n))) for n in range(5)]
        await until(lambda: queue.num_waiting == 4)
        broken.gate.set()
        _, *others = await asyncio.gather(*tasks)
        assert all("paused" in why for why in others)
        assert broken.asked == ["0"]

    run_with_queue(broken, scenario, failures=1)


def test_an_open_breaker_starts_no_thread() -> None:
    recorder = Recorder()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        assert "longer" in await unavailable(queue, "stalls")
        assert "paused" in await unavailable(queue, "open")
        assert len(queue.workers) == 1

    run_with_queue(recorder, scenario, ManualClock(), timeout=SHORT, failures=1)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_late_event_loop_does_not_blame_the_classifier(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def scenario() -> None:
        num_deliveries = counted_deliveries()
        queue = ClassifierQueue(Recorder(), SystemClock(), timeout=SHORT)
        asking = asyncio.create_task(queue.classify("text"))
        await asyncio.sleep(0)
        time.sleep(3 * SHORT)
        end = time.monotonic() + PATIENCE
        while not num_deliveries() and time.monotonic() < end:
            time.sleep(SHORT)
        assert await asking == expected_distribution("text")
        queue.close()

    run(scenario())


def test_only_one_probe_at_a_time_and_hits_need_none() -> None:
    broken, clock = BrokenClassifier(lambda texts: []), ManualClock()

    async def scenario(queue: ClassifierQueue) -> None:
        broken.answer = None
        await queue.classify("known")
        broken.answer = lambda texts: []
        await unavailable(queue, "opens")
        assert await queue.classify("known") == expected_distribution("known")
        clock.sleep(1.0)
        broken.gate.clear()
        broken.answer = None
        probe = asyncio.create_task(queue.classify("probe"))
        await until(lambda: len(broken.batches) == 3)
        assert "paused" in await unavailable(queue, "beside it")
        broken.gate.set()
        assert await probe == expected_distribution("probe")
        assert await queue.classify("closed") == expected_distribution("closed")

    run_with_queue(broken, scenario, clock, failures=1, cool_down=1.0)


def test_hung_threads_are_bounded_and_a_recovered_one_is_reused() -> None:
    recorder, clock = Recorder(), ManualClock()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        for n in range(10):
            await unavailable(queue, str(n))
            clock.sleep(100.0)
        assert "stuck" in await unavailable(queue, "no thread left")
        await until(lambda: len(queue.workers) == len(recorder.threads) == ClassifierQueue.MAX_STUCK + 1)
        queue._timeout = PATIENCE
        recorder.gate.set()
        await until(lambda: queue.cached("0"))
        assert await queue.classify("again") == expected_distribution("again")
        assert len(queue.workers) == len(recorder.threads) == ClassifierQueue.MAX_STUCK + 1

    run_with_queue(recorder, scenario, clock, timeout=SHORT, failures=1)


def test_without_threads_the_classifier_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(queue: ClassifierQueue) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert "no thread is available" in await unavailable(queue, "text")
        assert await queue.classify("text") == expected_distribution("text")

    run_with_queue(Recorder(), scenario)


def test_cancelled_callers_leave_no_work() -> None:
    recorder = Recorder()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        tasks = [asyncio.create_task(queue.classify(str(n % 100))) for n in range(200)]
        await until(lambda: queue.num_waiting == 99)
        staying = asyncio.create_task(queue.classify("7"))
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert queue.num_waiting == 1
        recorder.gate.set()
        assert await staying == expected_distribution("7")
        assert recorder.asked == ["0", "7"]

    run_with_queue(recorder, scenario)


def test_closing_fails_every_waiter() -> None:
    recorder = Recorder()
    recorder.gate.clear()

    async def scenario(queue: ClassifierQueue) -> None:
        tasks = [asyncio.create_task(unavailable(queue, str(n))) for n in range(5)]
        await until(lambda: queue.num_waiting == 4)
        queue.close()
        assert set(await asyncio.gather(*tasks)) == {await unavailable(queue, "later")} == {"it is shut down"}

    run_with_queue(recorder, scenario)


HANGS = """
import asyncio, threading
from octet.clock import SystemClock
from router.routing.classifier.base import ClassifierUnavailable
from router.routing.classifier.queue import ClassifierQueue

class Hangs:
    digest, labels = "d" * 64, ("algo",)
    def classify(self, texts):
        threading.Event().wait()

async def main():
    queue = ClassifierQueue(Hangs(), SystemClock(), timeout=0.01)
    try:
        await queue.classify("text")
    except ClassifierUnavailable as why:
        print(why)
    queue.close()

asyncio.run(main())
"""


def test_a_process_ends_while_its_classifier_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        0,
        "it took longer than 10 ms\n",
        "classification of 1 texts failed: it took longer than 10 ms\n",
    )


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"cache": -1}, {"max_batch": 0}, {"max_waiting": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ClassifierQueue(Recorder(), SystemClock(), **options)
