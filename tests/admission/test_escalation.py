"""Escalation moves only the intent that overloads, only by steps that help, and back as soon as its requests fit."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.budgets import RollingWindow
from admission.demand import NO_SECOND_CHOICE, DemandClass, DemandCounts, IntentDemand, fair_shares
from admission.escalation import (
    EscalationLadder,
    EscalationMove,
    EscalationView,
    KnobBase,
    KnobSteps,
    advance_ladder,
    steps_below,
)
from octet.config.ensemble import EscalationConfig

RULES = EscalationConfig()
BASE = KnobBase(0.5, 0)
START = 1_000_000.0
UNSURE, SURE, RULED = DemandClass(5, 60), DemandClass(5, 97), DemandClass(5)
LOW, HIGH = DemandClass(2), DemandClass(7)

rules = st.builds(
    EscalationConfig,
    enabled=st.just(True),
    refused=st.floats(0, 1),
    calm=st.floats(0, 1),
    min_requests=st.integers(1, 50),
    sustain=st.floats(1, 30),
    relax=st.floats(1, 120),
    threshold_step=st.one_of(st.just(0.0), st.floats(0, 1)),
    max_threshold=st.floats(0, 1),
    floor_step=st.integers(1, 9),
    max_floor=st.integers(0, 9),
)
bases = st.builds(
    KnobBase, st.floats(0, 1), st.integers(0, 9), st.none() | st.floats(0, 1), st.none() | st.integers(0, 9)
)
kinds = st.builds(DemandClass, st.integers(0, 9), st.integers(NO_SECOND_CHOICE, 100))
counts = st.builds(DemandCounts, st.integers(0, 90), st.integers(0, 90), st.integers(0, 40))
demands = st.builds(IntentDemand, st.dictionaries(kinds, counts, max_size=8), st.floats(0, 300))
views = st.builds(
    EscalationView,
    st.just("surge"),
    st.fixed_dictionaries({"surge": demands}, optional={"steady": demands, "other": demands}),
    bases,
    rules,
    moved_at=st.sampled_from([0.0, START]),
    reserved=st.integers(0, 50),
)


def view_of(
    classes: Mapping[DemandClass, DemandCounts], usual: float = 0.0, base: KnobBase = BASE, **others: IntentDemand
) -> EscalationView:
    return EscalationView("surge", {"surge": IntentDemand(classes, usual), **others}, base, RULES)


# Shares


names = st.sampled_from("abcdef")


@given(st.dictionaries(names, st.floats(0, 1e4)), st.dictionaries(names, st.floats(0, 1e4)), st.floats(0, 2e4))
def test_shares_use_the_capacity_and_protect_the_usual_demand(
    demand: dict[str, float], usual: dict[str, float], capacity: float
) -> None:
    shares = fair_shares(demand, usual, capacity)
    assert shares.keys() == demand.keys()
    assert sum(shares.values()) == pytest.approx(min(capacity, sum(demand.values())), rel=1e-6, abs=1e-6)
    assert all(0 <= shares[name] <= wanted * (1 + 1e-9) + 1e-9 for name, wanted in demand.items())
    entitled = {name: min(wanted, usual.get(name, 0.0)) for name, wanted in demand.items()}
    if sum(entitled.values()) <= capacity:
        assert all(shares[name] >= entitled[name] - 1e-6 for name in demand)
    extra = {name: shares[name] - entitled[name] for name in demand if shares[name] < demand[name] - 1e-6}
    if sum(entitled.values()) <= capacity:
        assert max(extra.values(), default=0) <= min(extra.values(), default=0) + 1e-5, (
            "those cut short get equal parts"
        )


def test_the_intent_above_its_usual_demand_overloads_and_its_victim_does_not() -> None:
    """Both intents want more than half of the capacity, but one of them always did."""
    demand = {
        "surge": IntentDemand({RULED: DemandCounts(300, 300)}, usual=150),
        "steady": IntentDemand({RULED: DemandCounts(600, 100)}, usual=700),
    }
    assert EscalationView("surge", demand, BASE, RULES).is_hot
    assert not EscalationView("steady", demand, BASE, RULES).is_hot
    unknown = {name: replace(each, usual=0.0) for name, each in demand.items()}
    assert all(EscalationView(name, unknown, BASE, RULES).is_hot for name in demand), "both exceed an equal share"


@given(views)
def test_a_refusing_specialist_has_an_intent_that_overloads(view: EscalationView) -> None:
    total, limit = view.total, view.rules.refused
    each = [replace(view, intent=name) for name in view.demand]
    if total.asked >= view.rules.min_requests and total.refused > limit * total.asked * (1 + 1e-9) + 1e-6:
        assert any(one.is_hot for one in each)
    assert not (view.is_hot and total.refused == 0)
    for one in each:
        assert not (one.is_hot and one.own.total.asked <= one.own.usual <= view.total.accepted) or (
            sum(min(part.usual, part.total.asked) for part in view.demand.values()) > total.accepted
        ), "an intent within its usual demand overloads only if the usual demands alone exceed the capacity"


# Steps


@given(base=bases, rules=rules)
@example(base=KnobBase(0.0, 0), rules=replace(RULES, max_threshold=1e-12))
@example(base=KnobBase(0.0, 0), rules=replace(RULES, max_threshold=1.0, threshold_step=1e-300))
def test_each_step_raises_one_knob_within_its_bounds(base: KnobBase, rules: EscalationConfig) -> None:
    most = base.most_steps(rules)
    assert base.raised(KnobSteps(), rules) == (base.threshold, base.floor)
    assert base.raised(KnobSteps(most.threshold + 3, most.floor + 3), rules) == base.raised(most, rules)
    thresholds = [base.raised(KnobSteps(number, 0), rules)[0] for number in range(most.threshold + 1)]
    floors = [base.raised(KnobSteps(0, number), rules)[1] for number in range(most.floor + 1)]
    step = max(0.01, rules.threshold_step)  # the confidence of requests is counted in percent
    assert all(0 < after - before <= step + 1e-6 for before, after in pairwise(thresholds)) and len(thresholds) <= 102
    assert all(0 < after - before <= rules.floor_step for before, after in pairwise(floors))
    assert floors[-1] == max(base.floor, rules.max_floor)
    if rules.threshold_step:
        assert thresholds[-1] == max(base.threshold, rules.max_threshold)
    for steps in (KnobSteps(), most):
        threshold, floor = base.in_force(steps, rules)
        assert base.set_threshold in (None, threshold) and base.set_floor in (None, floor)


@given(views, st.integers(0, 4), st.integers(0, 9))
def test_a_step_up_helps_and_withholds_no_more_than_the_excess(
    view: EscalationView, threshold: int, floor: int
) -> None:
    most = view.base.most_steps(view.rules)
    steps = KnobSteps(min(threshold, most.threshold), min(floor, most.floor))
    after = view.step_up(steps)
    asked = {kind: each.asked for kind, each in view.own.classes.items() if each.asked}

    def gained(to: KnobSteps) -> int:
        held = [num for kind, num in asked.items() if view.base.withholds(to, kind, view.rules)]
        return sum(held) - sum(num for kind, num in asked.items() if view.base.withholds(steps, kind, view.rules))

    if after is None:
        lasting = [KnobSteps(number, steps.floor) for number in range(steps.threshold, most.threshold + 1)]
        assert not any(gained(to) for to in lasting) or view.excess <= 0, "no threshold may be left that helps"
        return
    assert (after.threshold > steps.threshold) != (after.floor > steps.floor), "one knob moves"
    assert after.threshold <= most.threshold and after.floor <= most.floor
    if after.threshold > steps.threshold:
        assert gained(after) > 0
        below = KnobSteps(after.threshold - 1, after.floor)
        assert gained(below) < gained(after) and (gained(below) < view.excess or below == steps), "no step is wasted"
        return

    def num_below(to: KnobSteps) -> int:
        floor = view.base.in_force(to, view.rules)[1]
        return sum(num for kind, num in asked.items() if kind.priority < floor)

    assert 0 < num_below(after) <= view.excess + 1e-6
    assert num_below(KnobSteps(after.threshold, after.floor - 1)) < num_below(after), "no step is wasted"
    lowest = view.base.in_force(after, view.rules)[1]
    assert max(kind.priority for kind in asked) >= lowest, "the highest priority is never refused"


@given(views, st.integers(0, 4), st.integers(0, 9))
def test_it_is_said_why_no_step_helps(view: EscalationView, threshold: int, floor: int) -> None:
    most = view.base.most_steps(view.rules)
    steps = KnobSteps(min(threshold, most.threshold), min(floor, most.floor))
    if not view.is_hot or view.step_up(steps) is not None:
        return
    why = view.why_no_step(steps)
    assert f"{view.total.refused} of {view.total.asked} requests refused" in why
    if named := re.search(r"a floor of (\d) would withhold (\d+) requests, of which only (\d+)", why):
        lowest, withheld, excess = map(int, named.groups())
        below = [num.asked for kind, num in view.own.classes.items() if kind.priority < lowest]
        assert sum(below) == withheld > view.excess == pytest.approx(excess, abs=0.51)


def test_low_priorities_that_are_more_than_the_excess_stay_as_the_specialist_refuses_them() -> None:
    view = view_of({LOW: DemandCounts(20, 40), HIGH: DemandCounts(38, 2)})
    assert view.is_hot and view.step_up(KnobSteps()) is None
    assert view.why_no_step(KnobSteps()) == (
        "42 of 100 requests refused within 10 s, and no step of escalation helps: no threshold would move a recent "
        "request; a floor of 3 would withhold 60 requests, of which only 42 are too many"
    )


@pytest.mark.parametrize(
    ("classes", "steps"),
    [
        ({UNSURE: DemandCounts(50, 50)}, KnobSteps(1, 0)),
        ({DemandClass(5, 85): DemandCounts(50, 50)}, KnobSteps(3, 0)),
        ({SURE: DemandCounts(50, 50)}, None),
        ({RULED: DemandCounts(50, 50)}, None),
        ({LOW: DemandCounts(10, 40), HIGH: DemandCounts(50)}, None),
        ({LOW: DemandCounts(0, 40), HIGH: DemandCounts(50, 10)}, KnobSteps(0, 3)),
        ({UNSURE: DemandCounts(50, 1), LOW: DemandCounts(0, 40), HIGH: DemandCounts(50, 10)}, KnobSteps(1, 0)),
    ],
)
def test_steps_that_cannot_help_are_skipped(classes: dict[DemandClass, DemandCounts], steps: KnobSteps | None) -> None:
    """A threshold moves no request that is sure of its specialist or that a rule routed. A floor is useless for a
    single priority, or if it withholds more than the specialist refuses now."""
    assert view_of(classes).step_up(KnobSteps()) == steps


def test_values_set_by_an_operator_leave_no_step_that_helps() -> None:
    classes = {UNSURE: DemandCounts(0, 40), DemandClass(7, 60): DemandCounts(50, 10)}
    by_hand = replace(BASE, set_threshold=0.9, set_floor=0)
    assert view_of(classes, base=by_hand).step_up(KnobSteps()) == KnobSteps(1, 0), "it moves what is below their value"
    assert view_of(classes, base=by_hand).step_up(KnobSteps(1, 0)) is None
    assert view_of(classes, base=replace(by_hand, set_threshold=0.3)).step_up(KnobSteps()) is None


# The ladder


class Point(NamedTuple):
    at: float
    intent: str
    move: EscalationMove


@dataclass
class Specialist:
    """A specialist with a capacity in requests per second, which accepts high priorities first, and the ladders of its
    intents. Withheld requests go to a second choice."""

    capacity: float
    rules: EscalationConfig = RULES
    base: KnobBase = BASE
    usual: Mapping[str, float] = field(default_factory=dict)
    random: Random | None = None
    second_has_room: bool = True
    now: float = START
    ladders: dict[str, EscalationLadder] = field(default_factory=dict)
    moves: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windows: dict[tuple[str, DemandClass, str], RollingWindow] = {}

    def run(self, seconds: int, load: Mapping[str, Mapping[DemandClass, float]]) -> None:
        for _ in range(seconds):
            self.now += 1
            self._serve(load)
            self._tick()

    def level(self, intent: str) -> int:
        return self.ladders.get(intent, EscalationLadder()).level

    def demand(self) -> dict[str, IntentDemand]:
        found: dict[str, dict[DemandClass, DemandCounts]] = {}
        for (intent, kind, outcome), window in self.windows.items():
            classes = found.setdefault(intent, {})
            num = window.counts(self.now).good
            classes[kind] = classes.get(kind, DemandCounts()) + DemandCounts(**{outcome: num})
        return {
            name: IntentDemand(classes, self.usual.get(name, 0.0) * self.rules.sustain)
            for name, classes in found.items()
        }

    def _serve(self, load: Mapping[str, Mapping[DemandClass, float]]) -> None:
        room = self._number(self.capacity)
        asked: list[tuple[str, DemandClass, int]] = []
        for intent, classes in load.items():
            steps = self.ladders.get(intent, EscalationLadder()).steps
            floor = self.base.in_force(steps, self.rules)[1]
            for kind, rate in classes.items():
                is_moved = self.second_has_room and self.base.withholds(steps, kind, self.rules)
                if kind.priority < floor or is_moved:
                    self._count(intent, kind, "withheld", self._number(rate))
                else:
                    asked.append((intent, kind, self._number(rate)))
        # intents of equal priority take turns in being first
        order = sorted(asked, key=lambda each: (-each[1].priority, each[0]))
        for priority in sorted({kind.priority for _, kind, _ in order}, reverse=True):
            group = [each for each in order if each[1].priority == priority]
            for intent, kind, num in group if int(self.now) % 2 else reversed(group):
                accepted = min(num, room)
                room -= accepted
                self._count(intent, kind, "accepted", accepted)
                self._count(intent, kind, "refused", num - accepted)

    def _number(self, rate: float) -> int:
        if self.random is None:
            return int((self.now - START) * rate) - int((self.now - START - 1) * rate)
        return max(0, round(self.random.gauss(rate, rate**0.5)))

    def _count(self, intent: str, kind: DemandClass, outcome: str, num: int) -> None:
        if num:
            key = (intent, kind, outcome)
            self.windows.setdefault(key, RollingWindow(self.rules.sustain)).add(self.now, good=num)

    def _tick(self) -> None:
        demand, reserved = self.demand(), 0
        moved_at = max((ladder.since for ladder in self.ladders.values()), default=0.0)
        for name in sorted({*demand, *self.ladders}):
            view = EscalationView(name, demand, self.base, self.rules, moved_at, reserved)
            ladder, move = advance_ladder(self.ladders.get(name, EscalationLadder()), view, self.now)
            assert advance_ladder(ladder, view, self.now) == (ladder, None), "a second look must change nothing"
            self.ladders[name] = ladder
            if move is not None:
                reserved += move.returning
                self.moves.append(Point(self.now, name, move))

    def seconds_until(self, level: int, intent: str, load: Mapping[str, Mapping[DemandClass, float]]) -> int:
        """Run until the intent is at this level. Return the seconds that this takes."""
        for second in range(1, 10_000):
            self.run(1, load)
            if self.level(intent) == level:
                return second
        raise AssertionError(f"{intent} does not reach level {level}")


STEADY = {"steady": {DemandClass(5, 85): 70.0}}  # steps would help it too
QUIET = {**STEADY, "surge": {DemandClass(5, 85): 10.0}}
SURGE = {**STEADY, "surge": {DemandClass(5, 85): 60.0}}


def test_only_the_intent_that_overloads_moves_and_it_moves_as_soon_as_the_load_does() -> None:
    specialist = Specialist(100.0, usual={"steady": 70, "surge": 10})
    specialist.run(60, QUIET)
    assert not specialist.moves
    up = specialist.seconds_until(3, "surge", SURGE)
    specialist.run(30, SURGE)
    assert [(point.intent, point.move.before, point.move.after) for point in specialist.moves] == [
        ("surge", KnobSteps(0, 0), KnobSteps(3, 0))
    ], "the two thresholds that move no request are skipped"
    back = specialist.seconds_until(0, "surge", QUIET)
    assert up <= RULES.sustain + 3 and back <= RULES.sustain
    specialist.run(600, QUIET)
    assert len(specialist.moves) == 2 and not specialist.level("steady")
    assert "are of surge" in specialist.moves[0].move.why


def test_a_load_that_ends_is_cleared_in_the_stated_time() -> None:
    """The window must pass, twice if a part of the steps was undone meanwhile; after regrets, the pause too, which is
    at most `relax`."""
    for regrets in range(7):
        specialist = Specialist(58.0)
        specialist.run(60, {"surge": {LOW: 15.0, UNSURE: 60.0, DemandClass(7, 97): 60.0}})
        assert specialist.level("surge") > 1
        specialist.ladders["surge"] = replace(specialist.ladders["surge"], regrets=regrets)
        most = 2 * RULES.sustain + 3 + (RULES.relax if regrets else 0)
        assert specialist.seconds_until(0, "surge", {}) <= most


def test_capacity_that_grows_is_found_by_a_trial() -> None:
    specialist = Specialist(100.0, usual={"steady": 70})
    specialist.run(60, SURGE)
    assert specialist.level("surge") == 3
    specialist.capacity = 200.0
    assert specialist.seconds_until(0, "surge", SURGE) <= RULES.relax + 2 * RULES.sustain + 2


def test_an_intent_is_not_held_back_for_the_overload_of_another() -> None:
    """After its own surge, an intent returns although another one overloads the specialist and has no step that
    helps."""
    specialist = Specialist(100.0, usual={"surge": 20, "steady": 20})
    specialist.run(120, {"surge": {DemandClass(5, 60): 150.0}, "steady": {RULED: 20.0}})
    assert specialist.level("surge") == 1
    stuck = {"surge": {DemandClass(5, 60): 15.0}, "steady": {RULED: 300.0}}
    assert specialist.seconds_until(0, "surge", stuck) <= 2 * RULES.sustain + 4
    specialist.run(600, stuck)
    assert specialist.level("surge") == 0 and specialist.level("steady") == 0


def test_a_full_second_choice_does_not_make_the_ladder_oscillate() -> None:
    specialist = Specialist(100.0, second_has_room=False)
    specialist.run(2000, {"surge": {UNSURE: 150.0}})
    assert [point.move.what for point in specialist.moves] == ["escalate"]


loads = st.fixed_dictionaries(
    {"surge": st.dictionaries(kinds, st.floats(0, 80), min_size=1, max_size=4)},
    optional={"steady": st.dictionaries(kinds, st.floats(0, 80), max_size=3)},
)
SEGMENT = 600
MOST_MOVES = 14
"""Moves of one intent in 600 s after a change of load: up for each knob, back, and trials that grow rare."""


@settings(max_examples=max(8, settings().max_examples // 10), deadline=None)
@given(
    profile=st.lists(st.tuples(loads, st.floats(5, 150)), min_size=1, max_size=3),
    usual=st.dictionaries(st.sampled_from(["surge", "steady"]), st.floats(0, 100)),
    seed=st.none() | st.integers(0, 1 << 30),
)
def test_a_change_of_load_causes_few_moves_and_no_load_leaves_no_level(
    profile: Sequence[tuple[Mapping[str, Mapping[DemandClass, float]], float]],
    usual: dict[str, float],
    seed: int | None,
) -> None:
    specialist = Specialist(0.0, usual=usual, random=None if seed is None else Random(seed))
    for load, capacity in profile:
        specialist.capacity, before = capacity, len(specialist.moves)
        specialist.run(SEGMENT, load)
        new = specialist.moves[before:]
        for intent in load:
            assert sum(point.intent == intent for point in new) <= MOST_MOVES
        late = [point for point in new if point.at > specialist.now - SEGMENT / 2]
        assert len(late) <= 2 * (SEGMENT / 2 / RULES.relax / 2 + 1) * len(load)
    specialist.run(int(2 * RULES.sustain + RULES.relax) + 3, {})
    assert not any(map(specialist.level, ("surge", "steady")))


@settings(max_examples=100)
@given(view=views, looks=st.lists(st.one_of(st.floats(0, 10), st.floats(0, 500)), max_size=30))
def test_moves_wait_until_the_last_one_is_counted(view: EscalationView, looks: list[float]) -> None:
    ladder, now, moved_at = EscalationLadder(), START + 10_000, -inf
    for seconds in looks:
        now += seconds
        after, move = advance_ladder(ladder, view, now)
        assert advance_ladder(after, view, now) == (after, None)
        assert KnobSteps(*map(min, after.steps, view.base.most_steps(view.rules))) == after.steps
        if move is None:
            assert after.steps == ladder.steps
        else:
            assert (move.before, move.after) == (ladder.steps, after.steps)
            assert now - moved_at >= view.rules.sustain
            assert (move.what == "escalate") == (after.level > ladder.level)
            moved_at = now
        ladder = after


def test_lower_steps_are_listed_from_the_nearest() -> None:
    assert list(steps_below(KnobSteps(2, 2))) == [KnobSteps(2, 1), KnobSteps(2, 0), KnobSteps(1, 0), KnobSteps(0, 0)]


@pytest.mark.parametrize("settings", [{"enabled": False}, {"max_threshold": 0.5, "max_floor": 2}])
def test_other_rules_hold_at_once(settings: dict[str, object]) -> None:
    changed = replace(RULES, **settings)  # type: ignore[arg-type]
    view = replace(view_of({UNSURE: DemandCounts(50, 50)}), rules=changed)
    ladder, move = advance_ladder(EscalationLadder(2, 5, since=START), view, START)
    assert move is not None and move.what == "relax"
    assert ladder.steps == KnobSteps(*map(min, KnobSteps(2, 5), BASE.most_steps(changed)))


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_clock_that_was_wrong_once_does_not_stop_it_for_ever(is_busy: bool) -> None:
    view = view_of({UNSURE: DemandCounts(50, 50)} if is_busy else {})
    wrong = EscalationLadder(0 if is_busy else 2, 0, since=START + 1e6, hot_since=START + 1e6)
    ladder, _ = advance_ladder(wrong, view, START)
    ladder, move = advance_ladder(ladder, view, START + RULES.sustain)
    assert move is not None or ladder.level == 0


ladders = st.builds(
    EscalationLadder,
    threshold_steps=st.integers(0, 20),
    floor_steps=st.integers(0, 9),
    since=st.floats(0, 2e9),
    hot_since=st.none() | st.floats(0, 2e9),
    calm_since=st.none() | st.floats(0, 2e9),
    fits_since=st.none() | st.floats(0, 2e9),
    fell=st.booleans(),
    regrets=st.integers(0, 4),
    capacity=st.floats(0, 1e6),
)


@given(ladder=ladders)
def test_an_escalation_survives_the_store(ladder: EscalationLadder) -> None:
    assert EscalationLadder.from_body(json.loads(json.dumps(ladder.to_body()))) == ladder


@pytest.mark.parametrize("change", [{"floor_steps": -1}, {"threshold_steps": "two"}, {"regrets": 0.5}])
def test_an_invalid_escalation_document_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="ladder"):
        EscalationLadder.from_body(EscalationLadder().to_body() | change)
    with pytest.raises(ValueError, match="threshold_steps"):
        EscalationLadder.from_body({})
