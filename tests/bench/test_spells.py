"""When the machine was not itself is noted."""

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.spells import Beat, Interval, Spells, joined, noting_spells, spells_of

times = st.integers(0, 20).map(float)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=6)


@pytest.mark.skipif(os.geteuid() != 0, reason="a pacer comes before all others only as root")
def test_a_pacer_that_is_stopped_has_noted_it() -> None:
    """As a host stops a processor."""
    with noting_spells() as spells:
        pid = _a_pacer()
        time.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(0.3)
        ended = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
    assert spells.within(began, ended) >= 0.25
    assert not Path(f"/proc/{pid}").exists()


def _a_pacer() -> int:
    """A child of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if b"bench.pacer" in Path(f"/proc/{pid}/cmdline").read_bytes())


def _beats(works: list[float], late: dict[int, float] | None = None) -> list[Beat]:
    """One a second, which take so many 64ths of it over their work, and are so late."""
    woken = [second + (late or {}).get(second, 0.0) for second in range(len(works))]
    return [Beat(float(i), at, at + work / 64) for i, (at, work) in enumerate(zip(woken, works, strict=True))]


def test_a_slow_beat_speaks_for_the_time_around_it() -> None:
    assert list(spells_of(_beats([1, 1, 2, 4, 1, 1]))) == [(2.03125, 4.0)]
    assert list(spells_of(_beats([1, 2, 1, 2, 1, 1]))) == []


def test_the_first_and_the_last_beat_speak_for_themselves() -> None:
    assert list(spells_of(_beats([4, 1, 1, 1, 1, 4]))) == [(0.0, 1.0), (4.015625, 5.0625)]


def test_a_late_beat_stood_still() -> None:
    assert list(spells_of(_beats([1, 1, 1, 1], {2: 0.25}))) == [(2.0, 2.25)]
    assert list(spells_of(_beats([1, 1, 1, 1], {2: 0.001}))) == []


def test_where_no_pacer_may_come_first_nothing_is_known() -> None:
    assert list(spells_of([])) == [] and Spells().within(0, 100) == 0


@given(spans, times, times)
def test_every_moment_counts_once(intervals: list[Interval], one: float, other: float) -> None:
    began, ended = min(one, other), max(one, other)
    moments = {moment for first, last in intervals for moment in range(int(first), int(last))}
    expected = len(moments & set(range(int(began), int(ended))))
    assert Spells(joined(intervals)).within(began, ended) == expected
