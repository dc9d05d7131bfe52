"""Learned floors: what is learned, when a lane is below its floor, and how rarely that happens by chance."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
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


@pytest.mark.parametrize("window", [pytest.param(20, marks=pytest.mark.slow), 100, NUM_ANSWERS])
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


LOOK = CONFIG.window / 12
BOTH = {"cpp": Floor(0.5), "non_empty": Floor(0.9)}
History = list[dict[str, Counts]]
shares = st.sampled_from((0.0, 0.4, 0.6, 1.0))
histories = st.lists(
    st.builds(
        lambda numbers, passed: {
            name: Counts(round(number * share), number - round(number * share))
            for name, number, share in zip(BOTH, numbers, passed, strict=True)
        },
        st.tuples(st.sampled_from((0, 15, 100)), st.sampled_from((0, 15, 100))),
        st.tuples(shares, shares),
    ),
    max_size=12,
).flatmap(lambda looks: st.tuples(*(st.integers(1, 16) for _ in looks)).map(lambda n: [*zip(looks, n, strict=True)]))
"""Counts by verifier, and for how many looks they stay. The window is twelve looks long, and a breach less than one."""


def live(history: list[tuple[dict[str, Counts], int]], breach: float = CONFIG.breach) -> list[tuple[str, History]]:
    """Look at the breaker again and again. Return its transitions, and everything that was seen until each."""
    record, seen = BreakerRecord(), History()
    moves: list[tuple[str, History]] = []
    for counted in [counted for counted, number in history for _ in range(number)]:
        seen.append(counted)
        found = find_standing(BOTH, tally_of(counted), CONFIG.min_samples, "cpp", record.below_by, record.demoted_by)
        rules = choose_correctness_rules(replace(CONFIG, breach=breach), found.floor, verifier=found.verifier)
        record, transition = advance_breaker(record, found.counts, len(seen) * LOOK, rules)
        assert BreakerRecord.from_body(json.loads(json.dumps(record.to_body()))) == record
        if transition is not None:
            moves.append((transition.what, [*seen]))
    return moves


def shows(counted: dict[str, Counts], name: str) -> bool | None:
    """Whether the verifier shows that the lane is at its floor; None if it has judged too few answers."""
    counts = counted[name]
    return None if counts.rate is None or counts.total < CONFIG.min_samples else counts.rate >= BOTH[name].rate


@given(histories)
def test_a_lane_recovers_by_the_verifier_that_demoted_it(history: list[tuple[dict[str, Counts], int]]) -> None:
    demoted_by: set[str] = set()
    for what, seen in live(history):
        if what == "trip":
            demoted_by = {name for name in BOTH if shows(seen[-1], name) is False}
        else:
            reached = {name for name in BOTH if shows(seen[-1], name)}
            assert what == "relapse" or reached & demoted_by, f"{what} by {reached}, demoted by {demoted_by}"
            demoted_by |= {name for name in BOTH if what == "relapse" and shows(seen[-1], name) is False}


GOOD = {"cpp": Counts(100, 0), "non_empty": Counts(100, 0)}
TURNS = [GOOD | {"cpp": Counts(0, 100)}, GOOD | {"non_empty": Counts(0, 100)}] * 10


@given(histories, st.integers(1, 5))
@example([(each, 2) for each in TURNS], 2)
def test_one_verifier_is_below_its_floor_for_the_whole_breach(
    history: list[tuple[dict[str, Counts], int]], looks: int
) -> None:
    for what, seen in live(history, breach=looks * LOOK):
        if what in ("trip", "relapse"):
            assert any(all(shows(each, name) is not True for each in seen[-looks - 1 :]) for name in BOTH)


def test_many_good_answers_by_another_verifier_restore_no_lane() -> None:
    bad, few = {"cpp": Counts(0, 80)}, {"cpp": Counts(0, 15)}
    others = {"non_empty": Counts(200, 0)}
    history = [(bad | others, 3), (few | others, 40), ({"cpp": Counts(20, 0)} | others, 1), (few | others, 11)]
    assert [what for what, _ in live(history)] == ["trip", "recover"], "fifteen failures are too few to count for cpp"
    assert [what for what, _ in live([*history, ({"cpp": Counts(20, 0)} | others, 12)])][2:] == ["close"]


def test_two_verifiers_below_their_floors_in_turn_are_no_breach_and_both_at_once_are_one() -> None:
    assert live([(each, 2) for each in TURNS], breach=2 * LOOK) == []
    worse = [{"cpp": Counts(0, 100), "non_empty": Counts(8 * n, 100 - 8 * n)} for n in (0, 10)]
    worst = [each | {"cpp": Counts(number, 100 - number)} for each in worse for number in (0, 40)]
    assert [what for what, _ in live([(each, 1) for each in worst], breach=2 * LOOK)] == ["trip"]


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
