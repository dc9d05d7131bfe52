"""Escalation rises level by level under sustained refusals, falls the same way, and does not oscillate."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.budgets import Counts, RollingWindow
from admission.escalation import (
    EscalationLadder,
    EscalationMove,
    advance_ladder,
    count_levels,
    knobs_at_level,
)
from octet.config.ensemble import EscalationConfig

RULES = EscalationConfig(
    enabled=True,
    refused=0.05,
    calm=0.01,
    min_requests=20,
    sustain=10.0,
    relax=60.0,
    threshold_step=0.15,
    max_threshold=0.95,
    floor_step=1,
    max_floor=8,
)
HOT, CALM, BETWEEN, IDLE = Counts(90, 10), Counts(1000, 5), Counts(97, 3), Counts()
START = 1_000_000.0
TOP = 6

rules = st.builds(
    EscalationConfig,
    enabled=st.just(True),
    refused=st.floats(0, 1),
    calm=st.floats(0, 1),
    min_requests=st.integers(1, 50),
    sustain=st.floats(1, 30),
    relax=st.floats(1, 120),
    threshold_step=st.one_of(st.just(0.0), st.floats(0.01, 1)),
    max_threshold=st.floats(0, 1),
    floor_step=st.integers(1, 9),
    max_floor=st.integers(0, 9),
)
counted = st.one_of(
    st.sampled_from([HOT, CALM, BETWEEN, IDLE]), st.builds(Counts, st.integers(0, 60), st.integers(0, 60))
)


def steps(
    ladder: EscalationLadder,
    seconds: int,
    counts: Counts,
    since: float = START,
    rules: EscalationConfig = RULES,
    top: int = TOP,
) -> tuple[EscalationLadder, list[EscalationMove]]:
    """Advance the ladder once a second from `since` to `since + seconds`, both included. Return the ladder and its
    moves."""
    moves = []
    for i in range(seconds + 1):
        ladder, move = advance_ladder(ladder, counts, since + i, rules, top)
        moves += [move] if move else []
    return ladder, moves


def test_levels_rise_and_fall_one_at_a_time() -> None:
    ladder, moves = steps(EscalationLadder(), 100, HOT)
    assert [(move.before, move.after) for move in moves] == [(i, i + 1) for i in range(TOP)]
    assert all(latter.at - former.at >= RULES.sustain for former, latter in pairwise(moves))
    assert moves[0].at == START + 10
    assert {move.what for move in moves} == {"escalate"}
    assert "10 of 100 requests refused" in moves[0].why
    ladder, moves = steps(ladder, 400, CALM, START + 101)
    assert [(move.before, move.after) for move in moves] == [(i, i - 1) for i in range(TOP, 0, -1)]
    assert all(latter.at - former.at >= RULES.relax for former, latter in pairwise(moves))
    assert moves[0].at == START + 161
    assert {move.what for move in moves} == {"relax"}
    assert ladder.level == 0


def test_no_requests_count_as_calm() -> None:
    ladder, moves = steps(EscalationLadder(level=2), 60, IDLE)
    assert (ladder.level, len(moves)) == (1, 1)


@pytest.mark.parametrize("counts", [BETWEEN, Counts(10, 9), Counts(95, 5), Counts(99, 1)])
def test_between_hot_and_calm_the_level_stays(counts: Counts) -> None:
    """The cases include too few requests, and rates exactly at the hot and the calm threshold."""
    ladder, moves = steps(EscalationLadder(level=2), 1000, counts)
    assert (ladder.level, moves) == (2, [])


@pytest.mark.parametrize(("counts", "level"), [(Counts(94, 6), 3), (Counts(18, 2), 3), (Counts(10, 0), 1)])
def test_the_limits_of_hot_and_calm(counts: Counts, level: int) -> None:
    wait = 10 if counts.bad else 60
    assert steps(EscalationLadder(level=2), wait, counts)[0].level == level


def test_an_interruption_restarts_the_wait() -> None:
    ladder, _ = steps(EscalationLadder(level=1), 9, HOT)
    ladder, _ = advance_ladder(ladder, BETWEEN, START + 9.5, RULES, TOP)
    ladder, moves = steps(ladder, 9, HOT, START + 10)
    assert moves == []
    ladder, _ = steps(EscalationLadder(level=1), 59, CALM)
    ladder, _ = advance_ladder(ladder, BETWEEN, START + 59.5, RULES, TOP)
    ladder, moves = steps(ladder, 59, CALM, START + 60)
    assert moves == []


@settings(max_examples=150)
@given(
    rules=rules,
    top=st.integers(0, 9),
    looks=st.lists(st.tuples(st.one_of(st.floats(0, 10), st.floats(0, 500)), counted), max_size=80),
)
def test_the_level_moves_by_one_within_bounds_and_not_too_soon(
    rules: EscalationConfig, top: int, looks: list[tuple[float, Counts]]
) -> None:
    ladder, now, moved_at = EscalationLadder(), START, None
    for seconds, counts in looks:
        now += seconds
        once, move = advance_ladder(ladder, counts, now, rules, top)
        assert advance_ladder(once, counts, now, rules, top) == (once, None)
        assert 0 <= once.level <= top
        if move is None:
            assert once.level == ladder.level
        else:
            assert (move.before, move.after) == (ladder.level, once.level)
            assert abs(once.level - ladder.level) == 1
            assert moved_at is None or now - moved_at >= min(rules.sustain, rules.relax)
            moved_at = now
        ladder = once


@given(rules=rules, base_threshold=st.floats(0, 1), base_floor=st.integers(0, 9))
@example(rules=replace(RULES, max_threshold=1e-12), base_threshold=0.0, base_floor=0)
def test_thresholds_go_first_and_floors_after_within_their_bounds(
    rules: EscalationConfig, base_threshold: float, base_floor: int
) -> None:
    top = count_levels(base_threshold, base_floor, rules)
    knobs = [knobs_at_level(level, base_threshold, base_floor, rules) for level in range(top + 3)]
    assert knobs[0] == (base_threshold, base_floor)
    assert knobs[top] == knobs[top + 1] == knobs[top + 2]
    for (threshold, floor), (next_threshold, next_floor) in pairwise(knobs[: top + 1]):
        raised = (next_threshold > threshold, next_floor > floor)
        assert raised in {(True, False), (False, True)}, "each level must change exactly one knob"
        assert raised[0] or threshold == knobs[top][0], "no floor may rise before the threshold is at its maximum"
        assert next_threshold <= rules.max_threshold or next_threshold == threshold
        assert next_floor <= rules.max_floor or next_floor == floor
        assert next_threshold - threshold <= rules.threshold_step + 1e-6
        assert next_floor - floor <= rules.floor_step
    last_threshold, last_floor = knobs[top]
    assert last_floor == max(base_floor, rules.max_floor)
    if rules.threshold_step:
        assert last_threshold == max(base_threshold, rules.max_threshold)


def test_the_levels_of_the_usual_rules() -> None:
    assert count_levels(0.5, 0, RULES) == 11
    assert [knobs_at_level(level, 0.5, 0, RULES) for level in (0, 1, 2, 3, 4, 11)] == [
        (0.5, 0),
        (0.65, 0),
        (0.8, 0),
        (0.95, 0),
        (0.95, 1),
        (0.95, 8),
    ]
    assert count_levels(0.99, 9, RULES) == 0
    assert knobs_at_level(5, 0.99, 9, RULES) == (0.99, 9)


class Load:
    """A specialist with a constant load of 40 requests a second. `refused_at` returns the share of them that is refused
    at a given escalation level."""

    def __init__(self, refused_at: Callable[[int], float], seed: int = 0) -> None:
        self.refused_at = refused_at
        self.random = Random(seed)
        self.window = RollingWindow(RULES.sustain, 1)
        self.ladder = EscalationLadder()
        self.now = START
        self.moves: list[EscalationMove] = []

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            num_refused = sum(self.random.random() < self.refused_at(self.ladder.level) for _ in range(40))
            self.window.add(self.now, good=40 - num_refused, bad=num_refused)
            self.ladder, move = advance_ladder(self.ladder, self.window.counts(self.now), self.now, RULES, TOP)
            self.moves += [move] if move else []


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 32), enough=st.integers(0, TOP))
def test_under_a_constant_load_that_a_level_makes_bearable_it_stays_there(seed: int, enough: int) -> None:
    load = Load(lambda level: 0.5 if level < enough else 0.025, seed)
    load.run(600)
    assert load.ladder.level == enough
    assert [move.what for move in load.moves] == ["escalate"] * enough


@pytest.mark.parametrize("enough", [1, 3, TOP])
def test_under_a_constant_load_that_a_level_ends_altogether_steps_back_grow_rare(enough: int) -> None:
    """At every level below `enough`, half of the requests are refused; from `enough` on, none are. Only a step back
    shows whether the level is still needed."""
    load = Load(lambda level: 0.5 if level < enough else 0.0)
    load.run(20_000)
    assert {move.after for move in load.moves if move.at > START + 600} <= {enough - 1, enough}
    late = [move for move in load.moves if move.at > START + 10_000]
    assert len(late) <= 2 * (10_000 / (16 * RULES.relax) + 1)
    load.refused_at = lambda level: 0.0
    load.run(4000)
    assert load.ladder.level == 0, "steps back that had to be undone must not keep the level up forever"
    assert load.ladder.regrets == 0 or enough == 1


def test_a_step_back_that_held_is_no_regret() -> None:
    ladder, _ = steps(EscalationLadder(level=1, fell=False, regrets=2), 240, CALM)
    assert (ladder.level, ladder.fell) == (0, True)
    later = START + 10_000
    ladder, moves = steps(ladder, 10, HOT, later)
    assert (ladder.level, ladder.regrets, len(moves)) == (1, 0, 1)


@pytest.mark.parametrize(("rules", "top", "level"), [(replace(RULES, enabled=False), TOP, 0), (RULES, 2, 2)])
def test_other_rules_hold_at_once(rules: EscalationConfig, top: int, level: int) -> None:
    ladder, move = advance_ladder(EscalationLadder(level=5), HOT, START, rules, top)
    assert ladder.level == level
    assert move is not None
    assert (move.before, move.after, move.what) == (5, level, "relax")
    if not rules.enabled:
        assert steps(ladder, 100, HOT, rules=rules)[1] == []


@pytest.mark.parametrize("counts", [HOT, CALM])
def test_a_clock_that_was_wrong_once_does_not_stop_it_for_ever(counts: Counts) -> None:
    ladder, _ = advance_ladder(EscalationLadder(level=2, since=START + 1e6), counts, START + 1e6, RULES, TOP)
    assert steps(ladder, 60, counts)[1] != []


ladders = st.builds(
    EscalationLadder,
    level=st.integers(0, 20),
    since=st.floats(0, 2e9),
    hot_since=st.none() | st.floats(0, 2e9),
    calm_since=st.none() | st.floats(0, 2e9),
    fell=st.booleans(),
    regrets=st.integers(0, 4),
)


@given(ladder=ladders)
def test_an_escalation_survives_the_store(ladder: EscalationLadder) -> None:
    assert EscalationLadder.from_body(json.loads(json.dumps(ladder.to_body()))) == ladder


@pytest.mark.parametrize("change", [{"level": -1}, {"level": "two"}, {"regrets": 0.5}])
def test_an_invalid_escalation_document_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="ladder"):
        EscalationLadder.from_body(EscalationLadder().to_body() | change)
    with pytest.raises(ValueError, match="level"):
        EscalationLadder.from_body({})


def test_the_default_configuration() -> None:
    assert EscalationConfig() == RULES
