"""The costs of prefill and decode steps are estimated correctly from the durations of measured steps."""

from math import log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast.estimates import Estimator, StepInFlight, StepPrices, StepShape, _minimize
from tests.admission.forecast.builders import PRICES

costs = st.floats(1e-5, 1e-1)


def shapes(rng: Random, count: int) -> list[StepShape]:
    chosen = []
    for _ in range(count):
        prefill = rng.random() < 0.5
        tokens = rng.randrange(1, 128) if prefill else rng.randrange(1, 32)
        chosen.append(StepShape(prefill, tokens, tokens * rng.randrange(1, 2000)))
    return chosen


@given(st.tuples(*[costs] * 2), st.tuples(*[costs] * 2), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_prices_are_learnt_without_a_first_guess(
    prefill: tuple[float, float], decode: tuple[float, float], seed: int
) -> None:
    truth = StepPrices(*prefill, 1e-7, *decode, 1e-7)
    estimator = Estimator()
    for shape in shapes(Random(seed), 400):
        estimator.add(shape, truth.seconds(shape))
    learnt = estimator.prices
    assert learnt is not None
    for shape in shapes(Random(seed + 1), 50):
        assert abs(learnt.seconds(shape) - truth.seconds(shape)) < 0.1 * truth.seconds(shape)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 500), st.integers(1, 10**6), st.floats(1e-6, 1e3))))
@settings(max_examples=50, deadline=None)
def test_no_price_is_ever_negative_and_the_margin_keeps_its_bounds(
    steps: list[tuple[bool, int, int, float]],
) -> None:
    estimator = Estimator()
    for prefill, tokens, pairs, seconds in steps:
        estimator.add(StepShape(prefill, tokens, tokens + pairs), seconds)
        prices = estimator.prices
        assert prices is None or min(*prices.prefill, *prices.decode, prices.switch) >= 0
        assert 0 < estimator.margin <= 0.5


def test_no_price_is_known_before_both_kinds_of_step_were_measured() -> None:
    estimator = Estimator()
    for _ in range(5):
        estimator.add(StepShape(False, 1, 10), 0.01)
        assert estimator.prices is None
    estimator.add(StepShape(True, 8, 64), 0.03)
    assert estimator.prices is None
    estimator.add(StepShape(True, 8, 64), 0.03)
    assert estimator.prices is not None


def test_estimates_follow_a_slower_machine_but_not_a_single_stall() -> None:
    estimator = Estimator(PRICES)
    rng = Random(1)
    some = [shape for shape in shapes(rng, 1000) if not shape.prefill]
    for shape in some[:100]:
        estimator.add(shape, PRICES.seconds(shape))
    probe = StepShape(False, 8, 80)
    estimator.add(probe, 50 * PRICES.seconds(probe))
    stalled = estimator.prices
    assert stalled is not None and stalled.seconds(probe) < 1.3 * PRICES.seconds(probe)
    for shape in some[100:450]:
        estimator.add(shape, 3 * PRICES.seconds(shape))
    slower = estimator.prices
    assert slower is not None
    assert 2.7 < slower.seconds(probe) / PRICES.seconds(probe) < 3.3


def test_an_overdue_step_is_expected_to_be_as_late_as_others_that_were_later() -> None:
    estimator, shape = Estimator(PRICES), StepShape(False, 8, 80)
    usual = PRICES.seconds(shape)
    for ratio in (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0):
        estimator.add(shape, ratio * usual)
    step, prices = StepInFlight(shape, started_at=10.0), estimator.prices
    assert prices is not None
    expected = prices.seconds(shape)
    assert estimator.seconds_left(step, 10.0, prices) == expected
    left = [estimator.seconds_left(step, 10.0 + elapsed * expected, prices) for elapsed in (0.75, 1.5, 2.5, 50.0)]
    assert left[0] == pytest.approx(0.25 * expected)
    assert left[1] > 0 and left[2] > 0 and left[3] == 0, "no step took 50 times as long as expected"


def test_a_stall_lasts_as_long_in_a_long_step_as_in_a_short_one() -> None:
    estimator, short, long = Estimator(PRICES), StepShape(False, 1, 8), StepShape(True, 512, 512 * 256)
    for _ in range(50):
        estimator.add(short, PRICES.seconds(short))
        estimator.add(long, PRICES.seconds(long))
    estimator.add(short, PRICES.seconds(short) + 0.4)
    prices = estimator.prices
    assert prices is not None
    for shape in (short, long):
        step, overdue = StepInFlight(shape, started_at=0.0), prices.seconds(shape) + 0.1
        assert estimator.seconds_left(step, overdue, prices) == pytest.approx(0.3, abs=0.01)


def test_a_change_of_adapters_has_its_own_price() -> None:
    estimator = Estimator(PRICES)
    for i in range(200):
        shape = StepShape(False, 4, 40, switched=i % 4 == 0)
        estimator.add(shape, PRICES.seconds(shape) + (0.05 if shape.switched else 0.0))
    prices = estimator.prices
    assert prices is not None
    assert abs(prices.switch - 0.05) < 0.01
    assert abs(prices.seconds(StepShape(False, 4, 40)) - PRICES.seconds(StepShape(False, 4, 40))) < 0.002


def test_prices_are_right_on_average_on_a_noisy_machine() -> None:
    """A forecast adds up many steps, so it needs their mean time. Noise must not make the prices too low."""
    estimator, rng = Estimator(), Random(5)
    spent = expected = 0.0
    for i, shape in enumerate(shapes(rng, 1500)):
        seconds = PRICES.seconds(shape) * rng.lognormvariate(0.0, 0.4)
        if i >= 300 and estimator.prices is not None:
            expected += estimator.prices.seconds(shape)
            spent += seconds
        estimator.add(shape, seconds)
    assert abs(expected - spent) < 0.05 * spent


@given(st.sampled_from((0.25, 0.5, 2.0, 4.0)), st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_a_pace_measured_in_decode_steps_also_changes_the_price_of_prefill_steps(factor: float, seed: int) -> None:
    """Other processes slow down all steps alike, so that no step of every shape needs to be measured again."""
    estimator = Estimator(PRICES)
    some = shapes(Random(seed), 800)
    for shape in some[:200]:
        estimator.add(shape, PRICES.seconds(shape))
    seconds, prompt = 0.0, StepShape(True, 64, 6400)
    for shape in some[200:]:
        if not shape.prefill and seconds < 8.0:
            estimator.add(shape, factor * PRICES.seconds(shape))
            seconds += factor * PRICES.seconds(shape)
    prices = estimator.prices
    assert prices is not None
    assert 0.4 < log(prices.seconds(prompt) / PRICES.seconds(prompt)) / log(factor) < 1.0, "a large part of the way"


@given(
    st.lists(st.tuples(st.just(1.0), st.floats(0.1, 20.0), st.floats(0.01, 50.0)), min_size=1, max_size=5),
    st.tuples(*[st.floats(-1.0, 1.0)] * 3),
)
def test_prices_of_a_fit_are_the_best_that_are_not_negative(
    features: list[tuple[float, float, float]], right: tuple[float, float, float]
) -> None:
    """At the minimum, a price above 0 has no slope and a price of 0 would only cost more if it rose."""
    matrix = [[sum(f[i] * f[j] for f in features) + 0.1 * (i == j) for j in range(3)] for i in range(3)]
    best = _minimize(matrix, list(right))
    scale = sum(sum(row) for row in matrix) * max(1.0, *best)
    for i in range(3):
        slope = sum(matrix[i][j] * best[j] for j in range(3)) - right[i]
        assert best[i] >= 0 and slope >= -1e-6 * scale
        assert best[i] == 0 or abs(slope) <= 1e-6 * scale
