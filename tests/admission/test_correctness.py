"""A lane is demoted only after a sustained breach, returns only after a sustained recovery, and does not flap."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.breakers import (
    BreakerHold,
    BreakerRecord,
    BreakerState,
    BreakerTransition,
    CorrectnessRules,
    advance_breaker,
    breaker_status,
    choose_correctness_rules,
    describe_breaker_outlook,
    hold_breaker,
    may_serve,
    release_breaker,
)
from admission.budgets import Counts, RollingWindow
from admission.floors import Floor
from octet.config.ensemble import CorrectnessConfig

RULES = CorrectnessRules(floor=0.8, min_samples=20, window=60.0, breach=10.0)
GOOD, BAD, FEW_BAD, FEW_GOOD = Counts(90, 10), Counts(10, 90), Counts(0, 19), Counts(19, 0)
START = 1_000_000.0

seeds = st.integers(0, 1 << 32)
times = st.one_of(st.none(), st.floats(START - 200, START + 200))
standings = st.builds(
    BreakerRecord,
    state=st.sampled_from(["closed", "shadow_only", "recovering"]),
    since=st.floats(START - 200, START),
    transition_at=times,
    below_since=times,
    below_by=st.sampled_from(["", "cpp"]),
    demoted_by=st.sampled_from(["", "cpp"]),
    above_since=times,
    hold=st.sampled_from([None, "open", "closed"]),
    hold_by=st.text(max_size=5),
    hold_why=st.text(max_size=5),
    hold_since=st.floats(0, START),
)
counted = st.builds(Counts, st.integers(0, 60), st.integers(0, 60))


class Lane:
    """A lane whose answers pass with a given probability, and its breaker, which is checked every second."""

    def __init__(self, seed: int = 0, rules: CorrectnessRules = RULES) -> None:
        self.random = Random(seed)
        self.rules = rules
        self.window = RollingWindow(rules.window, 1)
        self.standing = BreakerRecord(since=START)
        self.now = START
        self.transitions: list[BreakerTransition] = []

    def second(self, chance: float, num_samples: int = 3) -> None:
        self.now += 1
        for _ in range(num_samples):
            passed = self.random.random() < chance
            self.window.add(self.now, good=passed, bad=not passed)
        self.look()

    def look(self) -> None:
        self.standing, transition = advance_breaker(self.standing, self.window.counts(self.now), self.now, self.rules)
        if transition is not None:
            self.transitions.append(transition)

    def seconds(self, num: int, chance: float) -> None:
        for _ in range(num):
            self.second(chance)

    def states(self) -> list[BreakerState]:
        return [transition.after for transition in self.transitions]


def steps(
    standing: BreakerRecord, looks: Iterable[tuple[float, Counts]]
) -> tuple[BreakerRecord, list[BreakerTransition]]:
    transitions = []
    for now, counts in looks:
        standing, transition = advance_breaker(standing, counts, now, RULES)
        transitions += [transition] if transition else []
    return standing, transitions


def test_a_lane_is_demoted_recovers_and_closes() -> None:
    lane = Lane()
    lane.seconds(100, 1.0)
    assert lane.transitions == []
    lane.seconds(60, 0.0)
    assert lane.states() == ["shadow_only"]
    demoted = lane.transitions[0]
    assert demoted.at - (START + 100) < 25, (
        "the rate falls below the floor after a fifth of a window, and then the breach must last"
    )
    lane.seconds(200, 1.0)
    assert lane.states() == ["shadow_only", "recovering", "closed"]
    assert [transition.what for transition in lane.transitions] == ["trip", "recover", "close"]
    assert [transition.before for transition in lane.transitions] == ["closed", "shadow_only", "recovering"]
    recovering, closed = lane.transitions[1:]
    assert recovering.at == START + 209, "failures of seconds 101 to 160 are then less than a fifth of the window"
    assert recovering.at >= demoted.at + 60
    assert closed.at == recovering.at + 60
    assert "passed" in demoted.why
    assert "80.0%" in demoted.why


@settings(max_examples=60)
@given(seed=seeds, wobble=st.floats(0.0, 0.4), num_samples=st.integers(1, 6))
def test_a_pass_rate_that_walks_around_the_floor_moves_it_at_most_once_a_window(
    seed: int, wobble: float, num_samples: int
) -> None:
    lane, walk = Lane(seed), Random(seed)
    chance = 0.8
    for _ in range(900):
        chance = min(1.0, max(0.5, chance + walk.uniform(-wobble, wobble)))
        lane.second(chance, num_samples if walk.random() < 0.9 else 0)
    for former, latter in pairwise(lane.transitions):
        assert latter.at - former.at >= RULES.window
        assert former.after == latter.before


def test_a_pass_rate_that_walks_around_the_floor_does_move_it() -> None:
    """Control: the breaker does move. If it never moved, the test above would prove nothing."""
    lane = Lane(7)
    for i in range(4000):
        lane.second(0.5 if i // 200 % 2 else 1.0)
    assert len(lane.transitions) > 10
    assert {"shadow_only", "recovering", "closed"} == set(lane.states())


@given(looks=st.lists(st.tuples(st.floats(0, 40), counted), max_size=60), standing=standings)
def test_no_two_moves_are_closer_than_a_window(looks: list[tuple[float, Counts]], standing: BreakerRecord) -> None:
    now, moved_at = START, None
    for seconds, counts in looks:
        now += seconds
        standing, transition = advance_breaker(standing, counts, now, RULES)
        if transition is None:
            continue
        assert moved_at is None or now - moved_at >= RULES.window
        assert transition.at == standing.since == standing.transition_at == now
        assert (transition.before, transition.after) in {
            ("closed", "shadow_only"),
            ("shadow_only", "recovering"),
            ("recovering", "closed"),
            ("recovering", "shadow_only"),
        }
        moved_at = now


@given(
    standing=standings,
    looks=st.lists(st.tuples(st.floats(0, 500), st.integers(0, 19), st.floats(0, 1)), max_size=30),
)
def test_few_samples_change_nothing_at_all(standing: BreakerRecord, looks: list[tuple[float, int, float]]) -> None:
    now = START
    for seconds, total, share in looks:
        now += seconds
        good = round(total * share)
        assert advance_breaker(standing, Counts(good, total - good), now, RULES) == (standing, None)


@given(standing=standings, counts=counted, seconds=st.floats(0, 1000))
def test_without_a_floor_nothing_ever_moves(standing: BreakerRecord, counts: Counts, seconds: float) -> None:
    rules = replace(RULES, floor=None)
    assert advance_breaker(standing, counts, START + seconds, rules) == (standing, None)


@pytest.mark.parametrize(("counts", "moves"), [(Counts(16, 4), False), (Counts(15, 5), True), (Counts(15, 4), False)])
def test_at_the_floor_is_not_below_it_and_enough_samples_are_enough(counts: Counts, moves: bool) -> None:
    _, transitions = steps(BreakerRecord(since=START), [(START + i, counts) for i in range(30)])
    assert bool(transitions) == moves


def test_a_breach_lasts_its_time_without_a_break() -> None:
    _, transitions = steps(BreakerRecord(since=START), [(START + i, BAD) for i in range(11)])
    assert [transition.at for transition in transitions] == [START + 10]
    looks = [(START + i, GOOD if i % 10 == 9 else BAD) for i in range(300)]
    assert steps(BreakerRecord(since=START), looks)[1] == []


def test_a_gap_counts_where_both_its_ends_are_below_and_no_sample_could_be_gone() -> None:
    down = (START, BAD)
    assert steps(BreakerRecord(since=START), [down, (START + 10, BAD)])[1]
    assert steps(BreakerRecord(since=START), [down, (START + 60, BAD)])[1]
    assert not steps(BreakerRecord(since=START), [down, (START + 5, GOOD), (START + 10, BAD)])[1]
    assert steps(BreakerRecord(since=START), [down, (START + 5, FEW_GOOD), (START + 10, BAD)])[1], (
        "a check with too few samples must be ignored"
    )
    assert not steps(BreakerRecord(since=START), [down, (START + 500, BAD)])[1], (
        "the rate between the two checks is unknown"
    )
    assert steps(BreakerRecord(since=START), [down, (START + 500, BAD), (START + 510, BAD)])[1]


def at_recovering() -> BreakerRecord:
    standing, transitions = steps(BreakerRecord(since=START), [(START, BAD), (START + 10, BAD), (START + 70, GOOD)])
    assert [transition.after for transition in transitions] == ["shadow_only", "recovering"]
    return standing


def test_a_dip_while_recovering_starts_the_wait_anew_and_moves_nothing() -> None:
    begun = START + 70
    standing, transitions = steps(at_recovering(), [(begun + 59, GOOD), (begun + 59.5, BAD), (begun + 60, GOOD)])
    assert (standing.state, transitions) == ("recovering", [])
    standing, transitions = steps(standing, [(begun + 119, GOOD)])
    assert (standing.state, transitions) == ("recovering", [])
    standing, transitions = steps(standing, [(begun + 120, GOOD)])
    assert standing.state == "closed"


def test_too_few_samples_never_bring_it_back() -> None:
    standing, _ = steps(BreakerRecord(since=START), [(START, BAD), (START + 10, BAD)])
    assert steps(standing, [(START + i, FEW_GOOD) for i in range(11, 400)])[0].state == "shadow_only"
    standing = at_recovering()
    assert steps(standing, [(START + i, FEW_GOOD) for i in range(71, 400)])[0].state == "recovering"


def test_below_again_while_recovering_is_a_relapse_once_the_window_is_over() -> None:
    begun = START + 70
    standing, transitions = steps(at_recovering(), [(begun + i, BAD) for i in range(1, 61)])
    assert [(each.at, each.what) for each in transitions] == [(begun + 60, "relapse")]
    assert standing.state == "shadow_only"


def test_a_recovery_needs_the_floor_at_the_end_of_the_window() -> None:
    standing, _ = steps(BreakerRecord(since=START), [(START, BAD), (START + 10, BAD)])
    standing, transitions = steps(standing, [(START + i, GOOD) for i in range(11, 70)])
    assert (standing.state, transitions) == ("shadow_only", [])
    standing, transitions = steps(standing, [(START + i, BAD) for i in range(70, 200)])
    assert (standing.state, transitions) == ("shadow_only", [])
    assert steps(standing, [(START + 200, GOOD)])[0].state == "recovering"


@settings(max_examples=60)
@given(seed=seeds, chance=st.floats(0.6, 0.95), turned=st.floats(0, 0.3))
def test_of_two_histories_the_better_is_never_demoted_before_the_worse(seed: int, chance: float, turned: float) -> None:
    random = Random(seed)
    worse, better = RollingWindow(60, 1), RollingWindow(60, 1)
    standing_of = {id(worse): BreakerRecord(since=START), id(better): BreakerRecord(since=START)}
    for i in range(300):
        passed = random.random() < chance
        luckier = passed or random.random() < turned
        worse.add(START + i, good=passed, bad=not passed)
        better.add(START + i, good=luckier, bad=not luckier)
        for window in (worse, better):
            counts = window.counts(START + i)
            standing_of[id(window)], _ = advance_breaker(standing_of[id(window)], counts, START + i, RULES)
        if standing_of[id(worse)].state != "closed":
            return
        assert standing_of[id(better)].state == "closed"


@settings(max_examples=max(20, settings().max_examples // 5))
@given(seed=seeds, levels=st.lists(st.sampled_from([1.0, 0.9, 0.8, 0.7, 0.0]), min_size=1, max_size=12))
def test_looking_more_often_moves_it_no_differently(seed: int, levels: list[float]) -> None:
    """A breaker that is checked eleven times a second, at random times, changes its state within a second of a breaker
    that is checked once a second."""
    random = Random(seed)
    coarse, fine = BreakerRecord(since=START), BreakerRecord(since=START)
    for i in range(40 * len(levels)):
        counts = Counts(round(100 * levels[i // 40]), 100 - round(100 * levels[i // 40]))
        now = START + i
        coarse, _ = advance_breaker(coarse, counts, now, RULES)
        for between in (0.0, *sorted(random.random() for _ in range(10))):
            fine, _ = advance_breaker(fine, counts, now + between * 0.99, RULES)
        assert coarse.state == fine.state or abs(fine.since - now) < 1


@given(standing=standings, counts=counted, seconds=st.floats(0, 200))
def test_a_second_step_changes_nothing(standing: BreakerRecord, counts: Counts, seconds: float) -> None:
    once, _ = advance_breaker(standing, counts, START + seconds, RULES)
    assert advance_breaker(once, counts, START + seconds, RULES) == (once, None)


@settings(max_examples=40)
@given(seed=seeds)
def test_two_routers_on_one_store_move_it_as_one_does(seed: int) -> None:
    """Both routers advance the breaker record in the store. A router's write is dropped if the other router has written
    since it read the record."""
    random, samples = Random(seed), Random(seed + 1)
    document, version, transitions = BreakerRecord(since=START), 0, list[BreakerTransition]()
    window = RollingWindow(60, 1)
    for i in range(400):
        passed = samples.random() < (0.5 if i // 100 % 2 else 1.0)
        window.add(START + i, good=passed, bad=not passed)
        read = (document, version)
        for router in random.sample([0, 1], 2):
            seen, expected = read if random.random() < 0.5 else (document, version)
            skew = 0.05 * router
            stepped, transition = advance_breaker(seen, window.counts(START + i), START + i + skew, RULES)
            if stepped != seen and expected == version:
                document, version = stepped, version + 1
                transitions += [transition] if transition else []
    assert all(latter.at - former.at >= RULES.window for former, latter in pairwise(transitions))
    alone, expected_transitions = BreakerRecord(since=START), list[BreakerTransition]()
    samples, window = Random(seed + 1), RollingWindow(60, 1)
    for i in range(400):
        passed = samples.random() < (0.5 if i // 100 % 2 else 1.0)
        window.add(START + i, good=passed, bad=not passed)
        alone, transition = advance_breaker(alone, window.counts(START + i), START + i, RULES)
        expected_transitions += [transition] if transition else []
    assert [each.what for each in transitions] == [each.what for each in expected_transitions]
    pairs = zip(transitions, expected_transitions, strict=True)
    assert all(abs(ours.at - theirs.at) < 2 for ours, theirs in pairs)


@settings(max_examples=40)
@given(seed=seeds, restarts=st.lists(st.integers(1, 499), max_size=8), away=st.integers(0, 5))
def test_restarts_change_nothing_that_matters(seed: int, restarts: list[int], away: int) -> None:
    """The store holds the breaker's record and the samples, so a restart loses neither."""
    steady, restarted = Lane(seed), Lane(seed)
    blind_until = 0
    for i in range(500):
        chance = 0.5 if i // 125 % 2 else 1.0
        if i in restarts:
            restarted.standing = BreakerRecord.from_body(json.loads(json.dumps(restarted.standing.to_body())))
            assert advance_breaker(restarted.standing, Counts(), restarted.now, RULES) == (restarted.standing, None)
            blind_until = i + away
        steady.second(chance)
        if i >= blind_until:
            restarted.second(chance)
        else:
            standing = restarted.standing
            restarted.second(chance)
            restarted.standing = standing
            restarted.transitions = [each for each in restarted.transitions if each.at != restarted.now]
    assert all(latter.at - former.at >= RULES.window for former, latter in pairwise(restarted.transitions))
    if not away:
        assert restarted.transitions == steady.transitions


@given(standing=standings)
@example(BreakerRecord())
def test_a_breaker_survives_the_store(standing: BreakerRecord) -> None:
    assert BreakerRecord.from_body(json.loads(json.dumps(standing.to_body()))) == standing


@pytest.mark.parametrize(
    "change",
    [
        *({"state": "open"}, {"hold": "tight"}, {"since": "yesterday"}, {"below_since": True}, {"transition_at": [1]}),
        {"demoted_by": 1},
    ],
)
def test_an_invalid_breaker_document_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="breaker"):
        BreakerRecord.from_body(BreakerRecord().to_body() | change)
    body = BreakerRecord().to_body()
    older = {name: value for name, value in body.items() if name not in ("below_by", "demoted_by", "collapse", "usual")}
    assert BreakerRecord.from_body(older) == BreakerRecord()
    del body["below_since"]
    with pytest.raises(ValueError, match="below_since"):
        BreakerRecord.from_body(body)


@given(
    seed=seeds,
    holds=st.lists(st.tuples(st.integers(0, 299), st.sampled_from(["open", "closed", None])), max_size=8),
)
@settings(max_examples=40)
def test_a_hold_decides_serving_and_leaves_the_state_alone(
    seed: int, holds: list[tuple[int, BreakerHold | None]]
) -> None:
    free, held = Lane(seed), Lane(seed)
    for i in range(300):
        for at, what in holds:
            if at == i:
                held.standing = release_breaker(held.standing)
                if what is not None:
                    held.standing = hold_breaker(held.standing, what, "ada", "bad refresh", held.now)
        chance = 1.0 if i < 60 or i > 150 else 0.0
        free.second(chance)
        held.second(chance)
        assert release_breaker(held.standing) == free.standing
        what = held.standing.hold
        assert may_serve(held.standing) == (free.standing.state == "closed" if what is None else what == "closed")
        assert breaker_status(held.standing) == (free.standing.state if what is None else f"held_{what}")
    assert [each.what for each in held.transitions] == [each.what for each in free.transitions]


def test_a_recovering_lane_does_not_serve_yet() -> None:
    assert may_serve(BreakerRecord(since=START))
    assert not may_serve(at_recovering())
    assert not may_serve(replace(at_recovering(), state="shadow_only"))


@pytest.mark.parametrize("ahead", [1e3, 1e6, 1e9])
def test_a_clock_that_was_wrong_once_does_not_stop_it_for_ever(ahead: float) -> None:
    demoted, _ = steps(BreakerRecord(since=START + ahead), [(START + ahead, BAD), (START + ahead + 10, BAD)])
    looks = [(START + i, GOOD) for i in range(200)]
    standing, transitions = steps(demoted, looks)
    assert standing.state == "closed"
    assert [transition.at - START for transition in transitions] == [60, 120]
    below, _ = steps(BreakerRecord(since=START + ahead), [(START + ahead, BAD)])
    assert steps(below, [(START + i, BAD) for i in range(11)])[0].state == "shadow_only"


@pytest.mark.parametrize("back", [0.5, 5.0, 20.0])
def test_a_clock_that_is_set_back_a_little_only_makes_it_wait(back: float) -> None:
    looks = [(START, BAD), (START + 5, BAD), *((START + 5 - back + i, BAD) for i in range(40))]
    _, transitions = steps(BreakerRecord(since=START), looks)
    assert [transition.at for transition in transitions] == [pytest.approx(START + 10, abs=1)]


OUTLOOKS: Sequence[tuple[Callable[[], BreakerRecord], Counts, float, str]] = [
    (lambda: BreakerRecord(since=START), FEW_BAD, START, "19 of 20 samples"),
    (lambda: BreakerRecord(since=START), GOOD, START, "above the floor"),
    (
        lambda: steps(BreakerRecord(since=START), [(START, BAD)])[0],
        BAD,
        START + 4,
        "below the floor for 4 of 10 s, then shadow-only",
    ),
    (
        lambda: steps(BreakerRecord(since=START), [(START, BAD), (START + 10, BAD)])[0],
        GOOD,
        START + 30,
        "recovering once the rate is above the floor; not within the next 40 s",
    ),
    (
        at_recovering,
        GOOD,
        START + 90,
        "above the floor for 20 of 60 s, then closed; not within the next 40 s",
    ),
    (
        lambda: hold_breaker(BreakerRecord(since=START), "open", "ada", "bad refresh", START),
        GOOD,
        START,
        "held open until released; without the hold: closed, above the floor",
    ),
]


@pytest.mark.parametrize(("standing", "counts", "now", "text"), OUTLOOKS)
def test_the_outlook_says_what_comes_next(
    standing: Callable[[], BreakerRecord], counts: Counts, now: float, text: str
) -> None:
    assert describe_breaker_outlook(standing(), counts, now, RULES) == text


def test_the_outlook_of_a_demoted_lane_without_a_floor_names_the_way_out() -> None:
    rules = replace(RULES, floor=None)
    assert (
        describe_breaker_outlook(BreakerRecord(since=START), GOOD, START, rules)
        == "no floor; pass rate is only recorded"
    )
    assert "only a hold lets it serve" in describe_breaker_outlook(at_recovering(), GOOD, START, rules)


def test_rules_come_from_the_configuration_and_the_specialist() -> None:
    config = CorrectnessConfig(min_samples=7, window=50.0, breach=3.0)
    rules = CorrectnessRules(floor=0.75, min_samples=7, window=50.0, breach=3.0)
    assert choose_correctness_rules(config, Floor(0.75)) == rules
    assert choose_correctness_rules(config, Floor(0.75, is_learned=True)) == replace(rules, is_learned=True)
