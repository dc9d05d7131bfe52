"""Slow periods of the machine are recorded. They are detected by pacers: processes that repeat a short piece of work
and notice when it takes longer."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import slow_periods as module
from bench.slow_periods import Beat, Interval, PacerFailed, SlowPeriods, joined, record_slow_periods, slow_intervals
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
times = st.integers(0, 20).map(float)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair) + 1)), max_size=6)


def _may_come_first() -> bool:
    asked = "from bench.slow_periods import comes_first; raise SystemExit(not comes_first())"
    return subprocess.run([sys.executable, "-c", asked], cwd=ROOT).returncode == 0


first_only = pytest.mark.skipif(not _may_come_first(), reason="this machine gives no process priority over all others")


@pytest.mark.slow
@first_only
def test_a_stopped_pacer_records_a_slow_period() -> None:
    """The test pauses the pacer, just as a host may pause a CPU of a virtual machine."""
    with record_slow_periods() as slow_periods:
        pid, *_ = _pacers()
        time.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(0.3)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
    assert slow_periods is not None
    assert all(slow_periods.meets(began + after) for after in (0.02, 0.1, 0.25))
    assert _pacers() == []


@first_only
def test_a_killed_pacer_is_an_error() -> None:
    with pytest.raises(PacerFailed, match="early with exit code -9"), record_slow_periods():
        pid, *_ = _pacers()
        os.kill(pid, signal.SIGKILL)


def test_no_process_is_left_after_a_failure() -> None:
    with pytest.raises(KeyError), record_slow_periods():
        raise KeyError
    assert _pacers() == []


def test_a_pacer_ends_without_its_parent() -> None:
    command = [sys.executable, "-m", "bench.slow_periods", "0", str(2**22 - 1)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 1), (
        "the pacer must print its first line and no more"
    )


def test_without_priority_over_other_processes_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", "printed by no pacer")
    with record_slow_periods() as slow_periods:
        assert slow_periods is None
    assert _pacers() == []


def _pacers() -> list[int]:
    """Return the pacers among the children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"bench.slow_periods" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _beats(works: list[float], late: dict[int, float] | None = None) -> list[Beat]:
    """Return one beat per second. `works` has the duration of each beat in 64ths of a second. `late` maps the number of
    a beat to its delay in seconds."""
    woken = [second + (late or {}).get(second, 0.0) for second in range(len(works))]
    return [Beat(float(i), at, at + work / 64) for i, (at, work) in enumerate(zip(woken, works, strict=True))]


def test_slow_beat_covers_the_time_around_it() -> None:
    assert list(slow_intervals(_beats([1, 1, 2, 4, 1, 1]))) == [(2.03125, 4.0)]
    assert list(slow_intervals(_beats([1, 2, 1, 2, 1, 1]))) == []


def test_first_and_last_beat_cover_their_own_time() -> None:
    assert list(slow_intervals(_beats([4, 1, 1, 1, 1, 4]))) == [(0.0, 1.0), (4.015625, 5.0625)]


def test_late_beat_is_a_slow_interval() -> None:
    assert list(slow_intervals(_beats([1, 1, 1, 1], {2: 0.25}))) == [(2.0, 2.25)]
    assert list(slow_intervals(_beats([1, 1, 1, 1], {2: 0.001}))) == []


@given(spans)
def test_joined_intervals_cover_every_moment_once(intervals: list[Interval]) -> None:
    apart = joined(intervals)
    assert apart == sorted(apart) and all(one[1] < other[0] for one, other in pairwise(apart))
    assert _moments(apart) == _moments(intervals)


def _moments(intervals: list[Interval]) -> set[int]:
    return {moment for first, last in intervals for moment in range(int(first), int(last))}


@given(spans, times)
def test_request_in_or_shortly_before_a_slow_period_meets_it(intervals: list[Interval], moment: float) -> None:
    slow_periods = SlowPeriods(joined(intervals))
    inside = any(first <= moment + 0.5 < last for first, last in intervals)
    assert slow_periods.meets(moment + 0.5) == inside
    assert slow_periods.meets(moment + 0.96) == (inside or any(first == moment + 1 for first, _ in intervals))
