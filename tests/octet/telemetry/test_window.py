"""A window holds only recent samples, in bounded memory, in whatever order they arrive."""

import random
import sys
from array import array
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.telemetry.distributions import (
    DEFAULT_PARTS,
    LEAST_SECONDS,
    MOST_AHEAD_SECONDS,
    MOST_SECONDS,
    RELATIVE_ERROR,
    Sketch,
    SlidingWindow,
    TimeSlice,
)

SECONDS = 60.0
SPAN = SECONDS / DEFAULT_PARTS
START = 1_790_000_000.0
MOST_BYTES = 64 << 10
SAMPLES = st.lists(st.tuples(st.floats(0, 3 * SECONDS), st.floats(LEAST_SECONDS, 100.0)), max_size=40)


def window() -> SlidingWindow[Sketch]:
    return SlidingWindow(SECONDS, Sketch)


def size_of(found: SlidingWindow[Sketch]) -> int:
    """Return the memory that the window uses, in bytes."""
    seen: set[int] = set()

    def size(item: object) -> int:
        if id(item) in seen or isinstance(item, type):
            return 0
        seen.add(id(item))
        parts: list[object] = []
        if isinstance(item, dict):
            parts = [*item, *item.values()]
        elif isinstance(item, tuple | list):
            parts = list(item)
        elif isinstance(item, Sketch):
            parts = [getattr(item, name) for name in Sketch.__slots__]
        elif isinstance(item, SlidingWindow):
            parts = [vars(item)]
        return sys.getsizeof(item) + sum(map(size, parts))

    return size(found)


@given(SAMPLES, st.floats(0, 3 * SECONDS))
def test_recent_samples_count_and_old_samples_do_not(samples: list[tuple[float, float]], until: float) -> None:
    found = window()
    came = sorted(each for each in samples if each[0] <= until)
    for at, seconds in came:
        found.current(START + at).add(seconds)
    measured = found.total(START + until).count
    assert measured >= sum(at > until - SECONDS for at, _ in came)
    assert measured <= sum(at > until - SECONDS - SPAN for at, _ in came)


@given(SAMPLES, st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_matter(samples: list[tuple[float, float]], dice: random.Random) -> None:
    """All samples are younger than the window. An older sample would be dropped together with its slice."""
    within = [(at % SECONDS, seconds) for at, seconds in samples]
    mixed = list(within)
    dice.shuffle(mixed)
    one, other = window(), window()
    for at, seconds in within:
        one.current(START + at).add(seconds)
    for at, seconds in mixed:
        other.current(START + at).add(seconds)
    assert one.total(START + SECONDS) == other.total(START + SECONDS)


@given(SAMPLES)
def test_cached_total_is_the_sum_of_the_slices(samples: list[tuple[float, float]]) -> None:
    """Some samples lie in a slice that is already closed, as after a backward step of the clock."""
    found = window()
    for at, seconds in samples:
        found.current(START + at).add(seconds)
        now = START + at + SPAN
        total = Sketch()
        for place, each in found.slices.items():
            if found.counts(place, now):
                total.merge(each)
        assert found.total(now) == total


def test_total_is_a_new_object() -> None:
    found = window()
    found.current(START).add(1.0)
    found.total(START + 2 * SPAN).add(5.0)
    assert found.total(START + 2 * SPAN).count == 1


def test_put_replaces_an_earlier_version_of_the_slice() -> None:
    found, place = window(), TimeSlice(round(START * 1000), 7000)
    for number in (3, 1):
        content = Sketch()
        for _ in range(number):
            content.add(1.0)
        found.put(place, content)
        assert found.total(START + 20).count == number
    found.drop(place)
    assert found.total(START + 20).count == 0


def test_slice_of_a_clock_that_is_far_ahead_does_not_count_early() -> None:
    found, content = window(), Sketch()
    content.add(1.0)
    found.put(TimeSlice(round((START + MOST_AHEAD_SECONDS + 10) * 1000), 1000), content)
    assert found.total(START).count == 0
    assert found.total(START + 10).count == 1
    assert found.total(START + MOST_AHEAD_SECONDS + 11 + SECONDS).count == 0


def test_resized_window_keeps_its_samples() -> None:
    found = window()
    found.current(START).add(1.0)
    found.resize(10 * SECONDS)
    found.current(START + 1).add(2.0)
    assert found.total(START + 2 * SECONDS).count == 2
    found.resize(10.0)
    assert found.total(START + 2 * SECONDS).count == 0


def test_number_of_slices_is_bounded_for_any_clock() -> None:
    found, dice = window(), random.Random(5)
    for _ in range(2000):
        found.current(START + dice.uniform(-1e6, 1e6)).add(1.0)
        assert len(found) <= 2 * (DEFAULT_PARTS + 2)
    for number in range(1000):
        found.put(TimeSlice(number * 1000, 1000), Sketch())
    assert len(found) <= 2 * (DEFAULT_PARTS + 2)


def test_million_samples_stay_within_memory_and_error_bounds() -> None:
    """The samples cover the whole range, so that every bucket is used."""
    number, end = 1_000_000, START + 2 * SECONDS
    found, dice = window(), random.Random(11)
    pool = [LEAST_SECONDS * (MOST_SECONDS / LEAST_SECONDS) ** dice.random() for _ in range(9973)]
    largest, kept = 0, array("d")
    for index in range(number):
        at = START + index * 2 * SECONDS / number
        seconds = pool[index % len(pool)]
        found.current(at).add(seconds)
        if found.counts(found.find_slice(at), end):
            kept.append(seconds)
        if index % 49_999 == 0:
            found.total(at)
            largest = max(largest, size_of(found))
    assert MOST_BYTES / 4 < largest < MOST_BYTES, "a much smaller size would mean that the measurement misses a part"
    measured, ordered = found.total(end), sorted(kept)
    assert measured.count == len(ordered) > number / 2
    for share in (0.5, 0.95, 0.99):
        true = ordered[ceil(share * len(ordered)) - 1]
        assert measured.quantile(share) == pytest.approx(true, rel=RELATIVE_ERROR)


def test_samples_taken_while_the_clock_was_ahead_never_count_later() -> None:
    found, ahead = window(), 7200.0
    found.current(START + ahead).add(1.0)
    found.current(START).add(2.0)
    assert len(found) == 1 and found.total(START).count == 1
    assert found.total(START + ahead).count == 0, "a sample from the time when the clock was ahead must not count later"
    found.current(START + MOST_AHEAD_SECONDS / 2).add(3.0)
    found.current(START + 1).add(4.0)
    assert found.total(START + 1).count == 3, "a sample from slightly ahead must count"
