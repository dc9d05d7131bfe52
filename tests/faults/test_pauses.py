"""The machine's pauses are noted, and nothing else is."""

import os
import signal
import time
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import pauses as noted
from tests.faults.pauses import Interval, Pauses, joined, noting_pauses

times = st.integers(0, 20).map(float)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=6)


def test_a_sleeper_that_is_stopped_has_noted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a host stops a processor."""
    begin, sleepers = noted._sleeper, []

    def begun(processor: int, notes: IO[str]) -> Any:
        sleepers.append(begin(processor, notes))
        return sleepers[-1]

    monkeypatch.setattr(noted, "_sleeper", begun)
    with noting_pauses() as pauses:
        time.sleep(1.0)
        os.kill(sleepers[0].pid, signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(0.3)
        ended = time.monotonic()
        os.kill(sleepers[0].pid, signal.SIGCONT)
        time.sleep(0.2)
    assert pauses.within(began, ended) >= 0.25


@given(spans, times, times)
def test_every_moment_counts_once(intervals: list[Interval], one: float, other: float) -> None:
    began, ended = min(one, other), max(one, other)
    moments = {moment for first, last in intervals for moment in range(int(first), int(last))}
    expected = len(moments & set(range(int(began), int(ended))))
    assert Pauses(joined(intervals)).within(began, ended) == expected
