"""Learned floors: what is learned, when a lane is below its floor, and how rarely that happens by chance."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.breakers import BreakerRecord, advance_breaker, choose_correctness_rules
from admission.budgets import Counts
from admission.floors import (
    MOST_LEARNED,
    Floor,
    FloorBook,
    chance_of_fewer,
    expected_rate,
    find_standing,
    floor_at,
    floors_in_force,
    learned_rate,
    tally_of,
)
from octet.config.ensemble import CorrectnessConfig

CONFIG = CorrectnessConfig()
NUM_LANES, NUM_ANSWERS = 10_000, 2000
STATED_SHARE = 0.005  # of lanes that are demoted by chance, as docs/verifiers.md states
counts = st.builds(Counts, st.integers(0, 500), st.integers(0, 500))
tallies = st.dictionaries(st.sampled_from(("cpp", "json", "non_empty")), counts, max_size=3).map(tally_of)


@given(counts, st.floats(0, 1))
def test_a_learned_floor_is_below_the_rate_and_above_nothing(counted: Counts, margin: float) -> None:
    rate = learned_rate(counted, margin)
    assert 0 <= rate <= MOST_LEARNED
    if counted.good and counted.rate is not None:
        assert 0 < rate < counted.rate, "a collapse to 0 must be below the floor, and the rate itself must not"
        assert rate >= learned_rate(counted, 1.0) and rate <= learned_rate(counted, 0.0)
    else:
        assert rate == 0


@pytest.mark.parametrize(("good", "floor"), [(15, 0.106), (45, 0.708), (50, 0.849), (1, 0.002), (0, 0.0)])
def test_floors_learned_from_fifty_answers(good: int, floor: float) -> None:
    assert learned_rate(Counts(good, 50 - good), CONFIG.floor_margin) == pytest.approx(floor, abs=5e-4)


@given(st.lists(st.tuples(tallies, st.integers(1, 3), st.booleans()), max_size=20))
def test_a_floor_never_changes_by_itself(history: list[tuple[object, int, bool]]) -> None:
    """Whatever the answers and the lanes, a known floor stays, unless an operator has promoted another lane."""
    book = FloorBook()
    for tally, lane, renews in history:
        after = book.learn(tally, lane, CONFIG, 1.0, renews=renews)  # type: ignore[arg-type]
        for verifier, floor in book.learned.items():
            assert after.learned[verifier] == floor or (renews and after.learned[verifier].lane == lane != floor.lane)
        assert all(each.total >= CONFIG.learn_samples for each in after.learned.values())
        assert FloorBook.from_body(json.loads(json.dumps(after.to_body()))) == after
        assert after.learn(tally, lane, CONFIG, 2.0, renews=renews) is after  # type: ignore[arg-type]
        book = after


_DROPS = [(0.98, 0.6), (0.9, 0.5), (0.7, 0.3), (0.5, 0.15), (0.3, 0.0), (0.2, 0.0)]


def simulate(rates: np.ndarray, after: np.ndarray, window: int, seed: int) -> tuple[float, float]:
    """Learn each lane's floor from its first answers. Return the share of lanes below it beyond doubt after any of the
    next answers, and the share that is below it at the end. The lanes pass at `rates`, and then at `after`."""
    random, learned = np.random.default_rng(seed), CONFIG.learn_samples
    changed = np.arange(NUM_ANSWERS)[None, :] >= learned
    passed = random.random((len(rates), NUM_ANSWERS)) < np.where(changed, after[:, None], rates[:, None])
    sums = np.concatenate([np.zeros((len(rates), 1), np.int64), passed.cumsum(1)], axis=1)
    by_good = np.array([learned_rate(Counts(good, learned - good), CONFIG.floor_margin) for good in range(learned + 1)])
    floors = by_good[sums[:, learned]]
    ever = below = np.zeros(len(rates), bool)
    for end in range(learned + 1, NUM_ANSWERS + 1):
        size = min(window, end)
        below = are_below(sums[:, end] - sums[:, end - size], size, floors)
        ever = ever | below
    return float(ever.mean()), float(below.mean())


def are_below(good: np.ndarray, size: int, floors: np.ndarray) -> np.ndarray:
    share = good / size
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(good > 0, good * np.log(share / floors), 0)
        parts = parts + np.where(good < size, (size - good) * np.log((1 - share) / (1 - floors)), 0)
    return (share < floors) & (np.exp(-parts) < 1e-3)


@given(counts, st.floats(0.01, 0.9))
def test_the_simulation_uses_the_rule_of_the_breaker(counted: Counts, floor: float) -> None:
    if counted.total and abs(chance_of_fewer(counted, floor) - 1e-3) > 1e-9:
        simulated = bool(are_below(np.array([counted.good]), counted.total, np.array([floor]))[0])
        assert simulated == Floor(floor, is_learned=True).is_breached(counted)


@pytest.mark.parametrize("window", [20, 100, NUM_ANSWERS])
def test_a_constant_lane_is_demoted_at_most_as_rarely_as_documented(window: int) -> None:
    rates = np.random.default_rng(7).random(NUM_LANES)
    assert simulate(rates, rates, window, seed=window)[0] <= STATED_SHARE


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0])
def test_no_rate_is_demoted_more_often_than_documented(rate: float) -> None:
    rates = np.full(NUM_LANES, rate)
    for window in (20, 30, 50, 200):
        assert simulate(rates, rates, window, seed=window)[0] <= STATED_SHARE


@pytest.mark.parametrize(("before", "after"), _DROPS)
def test_a_lane_that_drops_is_found_out(before: float, after: float) -> None:
    """The drop exceeds the margin and the error of learning. A window of a thousand answers then shows it."""
    lanes = 500
    assert simulate(np.full(lanes, before), np.full(lanes, after), 1000, seed=3)[1] >= 0.9


@given(tallies, tallies, st.floats(0, 1))
def test_a_change_of_the_mix_alone_breaches_no_floor(first: object, weights: object, share: float) -> None:
    """If each verifier's pass rate stays at or above its floor, the lane is above its floor in any mix of verifiers."""
    book = FloorBook().learn(first, 1, CONFIG, 1.0)  # type: ignore[arg-type]
    floors = floors_in_force("auto", "cpp", book)
    mixed = {}
    for verifier, each in weights.by_verifier.items():  # type: ignore[attr-defined]
        floor = floors.get(verifier, Floor(0.0)).rate
        good = -int(-each.total * (floor + (1 - floor) * share) // 1)  # at least the floor's share
        mixed[verifier] = Counts(good, each.total - good)
    standing = find_standing(floors, tally_of(mixed), CONFIG.min_samples, "cpp")
    rules = choose_correctness_rules(CONFIG, standing.floor)
    record, transition = advance_breaker(BreakerRecord(), standing.counts, 0.0, rules)
    assert transition is None and record.below_since is None


def test_one_verifier_is_enough_to_be_below_the_floor() -> None:
    """Many good answers by a lenient verifier do not hide that all C++ fails."""
    floors = {"cpp": Floor(0.1, is_learned=True), "non_empty": Floor(0.85, is_learned=True)}
    tally = tally_of({"cpp": Counts(0, 80), "non_empty": Counts(920, 0)})
    standing = find_standing(floors, tally, CONFIG.min_samples, "cpp")
    assert (standing.verifier, standing.counts) == ("cpp", Counts(0, 80))
    rules = choose_correctness_rules(CONFIG, standing.floor)
    record, _ = advance_breaker(BreakerRecord(), standing.counts, 0.0, rules)
    record, _ = advance_breaker(record, standing.counts, CONFIG.breach - 1, rules)
    _, transition = advance_breaker(record, standing.counts, CONFIG.breach, rules)
    assert transition is not None and (transition.what, transition.after) == ("trip", "shadow_only")
    assert transition.why == "0 of 80 passed (0.0%), the floor is 10.0% (learned); below it for 10 min"


def test_few_answers_below_a_learned_floor_prove_nothing_and_a_pinned_one_is_strict() -> None:
    few = Counts(5, 15)
    assert Floor(0.3).is_breached(few) and not Floor(0.3, is_learned=True).is_breached(few)
    assert Floor(0.3, is_learned=True).is_breached(Counts(50, 150 + 100))


def test_a_number_pins_the_specialists_own_verifier_only() -> None:
    book = FloorBook().learn(tally_of({"cpp": Counts(50, 50), "json": Counts(50, 0)}), 1, CONFIG, 1.0)
    assert floors_in_force(0.6, "cpp", book)["cpp"] == Floor(0.6)
    assert floors_in_force(0.6, "cpp", book)["json"].is_learned
    assert floors_in_force("none", "cpp", book) == {} and floors_in_force("auto", "cpp", FloorBook()) == {}


@given(tallies, tallies)
def test_lanes_are_compared_at_the_same_mix(reference: object, own: object) -> None:
    """A lane that passes as often as the reference by each verifier is as good, however the mixes differ."""
    total, expected = own.total, expected_rate(reference, own)  # type: ignore[arg-type, attr-defined]
    known = {name: each.rate for name, each in reference.by_verifier.items() if each.total >= 10}  # type: ignore[attr-defined]
    shared = {name: each for name, each in own.by_verifier.items() if name in known}  # type: ignore[attr-defined]
    if not shared or not total:
        assert not shared or not total
        return
    same = sum(known[n] * each.total if n in known else each.good for n, each in own.by_verifier.items())  # type: ignore[attr-defined]
    assert expected == pytest.approx(same / total)
    floors = {name: Floor(rate) for name, rate in known.items()}
    assert floor_at(floors, own) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "learned", [{"rate": 2.0}, {"rate": "x"}, {"total": None}, {}], ids=["rate", "text", "null", "missing"]
)
def test_an_invalid_stored_floor_is_refused(learned: dict[str, object]) -> None:
    whole = {"rate": 0.5, "good": 30, "total": 50, "lane": 1, "at": 1.0} if learned else {}
    with pytest.raises((ValueError, TypeError, KeyError)):
        FloorBook.from_body({"since": 0.0, "learned": {"cpp": {**whole, **learned}}})
