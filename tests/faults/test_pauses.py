"""The machine's pauses are noted."""

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.pauses import Interval, Pauses, joined, noting_pauses

times = st.integers(0, 20).map(float)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=6)


@pytest.mark.skipif(os.geteuid() != 0, reason="a sleeper comes before all others only as root")
def test_a_sleeper_that_is_stopped_has_noted_it() -> None:
    """As a host stops a processor."""
    with noting_pauses() as pauses:
        pid = _a_sleeper()
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(0.3)
        ended = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
    assert pauses.within(began, ended) >= 0.25
    assert not Path(f"/proc/{pid}").exists()


def _a_sleeper() -> int:
    """A child of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if b"tests.faults.sleeper" in Path(f"/proc/{pid}/cmdline").read_bytes())


@given(spans, times, times)
def test_every_moment_counts_once(intervals: list[Interval], one: float, other: float) -> None:
    began, ended = min(one, other), max(one, other)
    moments = {moment for first, last in intervals for moment in range(int(first), int(last))}
    expected = len(moments & set(range(int(began), int(ended))))
    assert Pauses(joined(intervals)).within(began, ended) == expected
