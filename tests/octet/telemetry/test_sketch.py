"""Quantiles are within the stated error for any samples, in any order and split over any number of sketches."""

import random
from collections.abc import Callable
from itertools import islice
from math import ceil, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.telemetry.distributions import LEAST_SECONDS, MOST_SECONDS, NUM_BUCKETS, RELATIVE_ERROR, BadSketch, Sketch

SECONDS = st.one_of(
    st.floats(min_value=LEAST_SECONDS, max_value=MOST_SECONDS, exclude_max=True),
    st.sampled_from([LEAST_SECONDS, 1e-4, 0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 3600.0]),
)
MANY = st.lists(SECONDS, max_size=60)
SHARES = (0.0, 0.5, 0.95, 0.99, 1.0)


def sketch_of(samples: list[float]) -> Sketch:
    sketch = Sketch()
    for each in samples:
        sketch.add(each)
    return sketch


def exact(samples: list[float], share: float) -> float:
    return sorted(samples)[max(1, ceil(share * len(samples))) - 1]


@given(MANY, st.floats(min_value=0, max_value=1))
def test_a_quantile_is_within_the_stated_error(samples: list[float], share: float) -> None:
    estimate = sketch_of(samples).quantile(share)
    if not samples:
        assert estimate is None
        return
    assert estimate is not None
    assert abs(estimate - exact(samples, share)) <= RELATIVE_ERROR * exact(samples, share)


def _two_peaks(dice: random.Random) -> float:
    return dice.gauss(0.02, 0.001) if dice.random() < 0.9 else dice.gauss(3, 0.1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda dice: dice.lognormvariate(-2, 1.2),
        lambda dice: 0.001 * dice.paretovariate(0.8),
        lambda dice: dice.uniform(0.01, 5),
        _two_peaks,
        lambda dice: dice.choice([0.05, 0.05, 0.05, 7.5]),
    ],
    ids=["lognormal", "pareto", "uniform", "two-peaks", "few-values"],
)
def test_quantiles_of_many_samples_of_one_distribution(draw: Callable[[random.Random], float]) -> None:
    dice = random.Random(7)
    samples = [min(MOST_SECONDS * 0.99, max(LEAST_SECONDS, draw(dice))) for _ in range(100_000)]
    sketch = sketch_of(samples)
    ordered = sorted(samples)
    assert sketch.count == len(samples)
    for share in (0.5, 0.9, 0.95, 0.99, 0.999):
        true = ordered[ceil(share * len(ordered)) - 1]
        assert sketch.quantile(share) == pytest.approx(true, rel=RELATIVE_ERROR)


@given(MANY, MANY)
def test_merged_sketches_equal_one_sketch_of_all_samples(some: list[float], others: list[float]) -> None:
    merged = sketch_of(some)
    merged.merge(sketch_of(others))
    assert merged == sketch_of(some + others)
    assert merged.count == len(some) + len(others)
    assert merged.to_bytes() == sketch_of(others[::-1] + some).to_bytes()


@given(MANY)
def test_written_sketch_is_read_back(samples: list[float]) -> None:
    sketch = sketch_of(samples)
    again = Sketch.from_bytes(sketch.to_bytes())
    assert again == sketch
    assert again.count == sketch.count
    assert again.quantiles(SHARES) == sketch.quantiles(SHARES)


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda raw: b"\x01" + raw))
def test_any_bytes_are_a_sketch_or_a_typed_error(raw: bytes) -> None:
    try:
        found = Sketch.from_bytes(raw)
    except BadSketch:
        return
    assert Sketch.from_bytes(found.to_bytes()) == found
    assert found.quantile(0.5) is None or found.count > 0


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "begin with byte 01"),
        (b"\x02\x01\x01", "begin with byte 01"),
        (b"\x01\x01", "1 to"),
        (b"\x01\x01\x81", "in the middle"),
        (b"\x01\x00\x01", "at most"),
        (b"\x01\x01\x00", "1 to"),
        (b"\x01\xff\x7f\x01", f"at most {NUM_BUCKETS - 1}"),
        (b"\x01" + b"\xff" * 30, "too long"),
        (b"\x01\x01" + b"\xff" * 8 + b"\x7f", "1 to"),
    ],
)
def test_hostile_bytes_are_refused(raw: bytes, says: str) -> None:
    with pytest.raises(BadSketch, match=says):
        Sketch.from_bytes(raw)


def test_value_out_of_range_counts_as_the_nearest_limit() -> None:
    sketch = sketch_of([-1.0, 0.0, 1e-9, 1e9, inf])
    assert sketch.count == 5
    assert sketch.quantile(0.5) == pytest.approx(LEAST_SECONDS, rel=2 * RELATIVE_ERROR)
    assert sketch.quantile(1.0) == pytest.approx(MOST_SECONDS, rel=2 * RELATIVE_ERROR)
    with pytest.raises(ValueError, match="nan"):
        sketch.add(nan)
    assert sketch.count == 5


def test_a_bucket_counts_beyond_four_bytes() -> None:
    sketch = sketch_of([1.0])
    for _ in range(40):
        twin = Sketch()
        twin.merge(sketch)
        sketch.merge(twin)
    sketch.add(1.0)
    assert sketch.count == 2**40 + 1
    assert Sketch.from_bytes(sketch.to_bytes()) == sketch
    assert Sketch.from_bytes(sketch.to_bytes()).count == sketch.count


def test_sketch_with_every_bucket_filled_has_bounded_size() -> None:
    width = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
    durations = [
        LEAST_SECONDS * width**power
        for power in islice(range(10_000), NUM_BUCKETS)
        if LEAST_SECONDS * width**power < MOST_SECONDS
    ]
    sketch = sketch_of([*durations, MOST_SECONDS])
    assert len(sketch.to_bytes()) <= 1 + 2 * NUM_BUCKETS
    assert sketch == Sketch.from_bytes(sketch.to_bytes())
