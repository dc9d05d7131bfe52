"""A window of bounded memory counts only recent samples. A counter counts no event twice and loses none."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from admission.budgets import Counts, RollingWindow, bucket_seconds

SPAN, GRAIN = 100.0, 7
few = st.integers(0, 5)


class Windows(RuleBasedStateMachine):
    """Compares a window with a plain dict of all buckets in its span."""

    def __init__(self) -> None:
        super().__init__()
        self.window = RollingWindow(SPAN, GRAIN)
        self.buckets: dict[int, Counts] = {}
        self.now = 1_000_000.0

    @rule(seconds=st.one_of(st.floats(0, 30), st.floats(-20, 0), st.floats(0, 400)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(age=st.floats(-150, 250), good=few, bad=few)
    def count_samples(self, age: float, good: int, bad: int) -> None:
        start = self.window.add(self.now - age, good, bad)
        assert start % GRAIN == 0
        assert start <= self.now - age < start + GRAIN
        self.buckets[start] = self.buckets.get(start, Counts()) + Counts(good, bad)

    @rule(age=st.integers(-300, 300), good=few, bad=few)
    def import_bucket(self, age: int, good: int, bad: int) -> None:
        start = int(self.now) - age
        self.window.put(start, good, bad)
        self.buckets[start] = Counts(good, bad)

    @rule(since=st.floats(-200, 300))
    def read_counts(self, since: float) -> None:
        self.buckets = {start: each for start, each in self.buckets.items() if abs(start - self.now) <= SPAN}
        assert self.window.counts(self.now) == sum(self.buckets.values(), Counts())
        later = (each for start, each in self.buckets.items() if start + GRAIN > self.now - since)
        assert self.window.counts_since(self.now - since, self.now) == sum(later, Counts())

    @invariant()
    def buckets_match_the_model(self) -> None:
        assert len(self.window) == len(self.buckets)


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60)


def test_a_sample_counts_for_one_span_within_a_bucket() -> None:
    for age in range(0, int(SPAN) + 2):
        window = RollingWindow(SPAN, GRAIN)
        window.add(1000.0, good=1)
        total = window.counts(1000.0 + age).total
        assert total == 1 if age <= SPAN - GRAIN else total == 0 or age <= SPAN


def test_counts_are_exact_to_the_second() -> None:
    window = RollingWindow(SPAN, GRAIN)
    for start in (1199, 1200, 1400, 1401):
        window.put(start, 1, 0)
    assert window.counts(1300).total == 2, "one sample is about to leave the window, one has just entered"
    assert window.counts(1300.5).total == 1
    assert window.counts(1299.5).total == 0
    window.put(1400, 1, 0)
    assert window.counts(1500).total == 1
    assert window.counts_since(1400 + GRAIN, 1500).total == 0
    assert window.counts_since(1400 + GRAIN - 0.5, 1500).total == 1
    assert window.counts(1500.5).total == 0


def test_samples_too_far_ahead_are_searched_once() -> None:
    window = RollingWindow(SPAN, GRAIN)
    num_looks = 0
    forget = window._drop_after

    def watched(end: float) -> None:
        nonlocal num_looks
        num_looks += 1
        forget(end)

    window._drop_after = watched  # type: ignore[method-assign]
    window.put(10_000_000, 1, 0)
    for now in range(1000, 1100):
        window.add(now, good=1)
        window.expire(now)
    assert num_looks == 1


def test_memory_is_bounded() -> None:
    random = Random(5)
    window = RollingWindow(86_400.0)
    for at in range(0, 40 * 86_400, 97):
        window.add(at + random.uniform(-300, 300), good=1)
        if at % 970 == 0:
            window.expire(at)
            assert len(window) <= 2 * 288 + 2
    unread = RollingWindow(10.0)
    for start in random.sample(range(1_000_000), 20_000):
        unread.put(start, 1, 0)
    assert len(unread) <= 4096
    assert unread.counts(999_999).total <= 11


def test_counting_is_cheap_however_much_is_in_the_window() -> None:
    """Each bucket is dropped once, and no query scans the whole window."""
    window = RollingWindow(86_400.0)
    looked_at = 0

    class WatchedDict(dict[int, Counts]):
        def items(self) -> None:  # type: ignore[override]
            raise AssertionError("the whole window was scanned")

        def pop(self, *key: int) -> Counts:  # type: ignore[override]
            nonlocal looked_at
            looked_at += 1
            return super().pop(*key)

    window._buckets = WatchedDict()
    for now in range(0, 3 * 86_400, 60):
        window.add(now, good=1, bad=1)
        assert window.counts(now).total <= 2 * 1441
    assert looked_at <= 3 * 288


@pytest.mark.parametrize(("span", "grain"), [(1, 1), (10, 1), (288, 1), (289, 2), (600, 3), (86_400, 300)])
def test_the_grain_follows_the_span(span: float, grain: int) -> None:
    assert bucket_seconds(span) == RollingWindow(span).grain == grain


@pytest.mark.parametrize(
    ("span", "grain"), [(0.0, None), (-1.0, None), (float("nan"), None), (float("inf"), None), (10.0, 0), (86_400.0, 1)]
)
def test_invalid_figures_are_refused(span: float, grain: int | None) -> None:
    with pytest.raises(ValueError):
        RollingWindow(span, grain)


@given(good=st.integers(0, 1000), bad=st.integers(0, 1000))
def test_a_rate_is_a_share_of_what_was_counted(good: int, bad: int) -> None:
    counts = Counts(good, bad)
    assert counts.total == good + bad
    assert counts.rate == (None if not counts.total else good / (good + bad))
