"""Verifier processes end within their limits, and the pool bounds their number."""

import asyncio
import itertools
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from router.verify.pool import PoolTask, TaskResult, VerifierPool
from tests.patience import PATIENCE
from tests.router.verify.conftest import run


def python(script: str, given: bytes = b"", seconds: float = PATIENCE, most: int = 1 << 16, by: str = "") -> PoolTask:
    return PoolTask([sys.executable, "-I", "-S", "-c", script], given, seconds, most, owner=by)


def done(job: PoolTask) -> TaskResult:
    return run(VerifierPool().run(job))


def test_input_output_and_exit_code_of_a_process() -> None:
    result = done(python("import sys; d = sys.stdin.buffer.read(); print(len(d)); sys.exit(3)", b"x" * 1_000_000))
    assert (result.ending, result.code, result.stdout) == ("exited", 3, b"1000000\n")


def test_a_process_that_reads_no_input_still_ends() -> None:
    assert done(python("pass", b"x" * 10_000_000)).ending == "exited"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_cut_off(stream: str) -> None:
    result = done(python(f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"))
    assert result.ending == "flood"
    assert len(result.stdout) + len(result.stderr) <= 1 << 16


def test_a_process_that_closes_its_outputs_is_killed_at_its_time_limit() -> None:
    result = done(python("import os, time; os.close(1); os.close(2); time.sleep(10_000)", seconds=0.5))
    assert result.ending == "out_of_time"


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(10_000)"
    )
    assert done(python(script, seconds=1)).ending == "out_of_time"


def test_the_environment_of_a_process_is_empty() -> None:
    result = done(python("import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))"))
    assert result.stdout == b"[]\n"


def test_the_pool_bounds_running_processes() -> None:
    script = "import time; print(time.time(), flush=True); time.sleep(0.2); print(time.time())"

    async def spans(width: int) -> list[tuple[float, float]]:
        pool = VerifierPool(width)
        results = await asyncio.gather(*(pool.run(python(script)) for _ in range(4)))
        return [(float(one.stdout.split()[0]), float(one.stdout.split()[1])) for one in results]

    narrow = sorted(run(spans(1)))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(narrow))
    wide = sorted(run(spans(2)))
    assert all(sum(a < one[0] < b for a, b in wide) < 2 for one in wide)


def test_a_waiting_process_can_be_cancelled() -> None:
    async def waiting() -> float:
        pool = VerifierPool()
        long = asyncio.ensure_future(pool.run(python("import time; time.sleep(10_000)")))
        short = asyncio.ensure_future(pool.run(python("pass")))
        await asyncio.sleep(0.1)
        for task in (short, long):
            task.cancel()
        await asyncio.gather(short, long, return_exceptions=True)
        started = time.monotonic()
        await pool.run(python("pass"))
        return time.monotonic() - started

    assert run(waiting()) < PATIENCE, "the others would take longer"


def test_slow_owners_wait_for_fast_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("router.verify.pool.time", SimpleNamespace(monotonic=clock.now))

    async def order() -> list[str]:
        pool = VerifierPool()
        ended: list[str] = []

        async def do(by: str, seconds: float) -> None:
            async with pool._turn(by):
                await asyncio.sleep(0)
                clock.sleep(seconds)
            ended.append(by)

        slow = [do("slow", 5.0) for _ in range(2)]
        await asyncio.gather(*slow, *(do("quick", 1.0) for _ in range(4)))
        return ended

    assert run(order()) == ["slow", *["quick"] * 4, "slow"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans()), max_size=30), st.integers(1, 3))
def test_every_slot_is_given_back(askers: list[tuple[str, int, bool]], width: int) -> None:
    """Slots are given back even if tasks are cancelled while they wait or run."""

    async def all_of_them() -> int:
        pool = VerifierPool(width)
        inside = most = 0

        async def work(by: str, steps: int) -> None:
            nonlocal inside, most
            async with pool._turn(by):
                inside, most = inside + 1, max(most, inside + 1)
                try:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = []
        for by, steps, cancels in askers:
            tasks.append(asyncio.ensure_future(work(by, steps)))
            await asyncio.sleep(0)
            if cancels:
                tasks[len(tasks) // 2].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        assert (pool._num_free, pool._queue.waiting, inside) == (width, {}, 0)
        return most

    assert run(all_of_them()) <= width


def test_a_task_cancelled_at_its_turn_frees_its_slot() -> None:
    async def free_in_the_end() -> int:
        pool = VerifierPool()
        async with pool._turn("a"):
            waiting = asyncio.ensure_future(pool.run(python("pass")))
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return pool._num_free

    assert run(free_in_the_end()) == 1
