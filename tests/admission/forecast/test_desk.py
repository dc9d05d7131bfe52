"""Who is let in, who is not, and who has to go."""

from dataclasses import fields, replace
from math import isfinite
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast import Admit, Booking, Desk, Estimator, Prices, Refuse, Shape, Sweep, UnderWay, walk
from admission.forecast.entry import Entry
from admission.forecast.judge import Judge
from admission.forecast.trial import Trial
from tests.admission.forecast.builders import PRICES, booking, let_in, new_desk, run_at_once


def refused(desk: Desk, asked: Booking, now: float = 0.0) -> Refuse:
    verdict = desk.ask(asked, now)
    assert isinstance(verdict, Refuse), verdict
    return verdict


def test_an_idle_replica_says_how_long_it_will_take() -> None:
    verdict = new_desk().ask(booking("a", prompt_tokens=100, max_tokens=11, deadline=5.0), 0.0)
    assert isinstance(verdict, Admit) and verdict.outlook is not None
    assert verdict.outlook.wait == 0
    assert verdict.outlook.total == pytest.approx(0.302 + 10 * 0.0065, rel=0.01)
    assert verdict.outlook.slack == pytest.approx(5.0 - verdict.outlook.total)


def test_nothing_measured_nothing_judged() -> None:
    desk = new_desk(prices=None)
    verdict = desk.ask(booking("a", max_tokens=10**6, deadline=0.001), 0.0)
    assert verdict == Admit(None)
    assert desk.error() is None and desk.usual_wait(0.0) is None


def test_a_deadline_that_cannot_be_reached_is_refused_with_its_arithmetic() -> None:
    desk = new_desk()
    verdict = refused(desk, booking("a", max_tokens=1000, deadline=5.0))
    assert verdict.reason == "deadline_unreachable" and verdict.retry_after is None, "later is no better"
    assert verdict.arithmetic == "its own 1000 tokens take 6.5 s even alone; its deadline is in 5.0 s"
    assert desk.refusing(0.5) and not desk.refusing(2.0)


def test_one_that_waits_for_others_is_told_when_to_come_back() -> None:
    desk = new_desk(max_running=1)
    let_in(desk, booking("a", max_tokens=500))
    run_at_once(desk, "a")
    verdict = refused(desk, booking("b", max_tokens=100, deadline=2.0))
    assert verdict.reason == "deadline_unreachable" and "of work are before it" in verdict.arithmetic
    assert verdict.retry_after is not None
    back = verdict.retry_after
    assert 1.0 < back < 3.3, "a takes 3.2 s, b 0.7 s of its 2 s"
    shed = desk.retry_after(booking("b", max_tokens=100, deadline=2.0), 0.0)
    assert shed is not None and 1.0 < shed < 3.3


def test_a_lone_answer_that_may_be_short_needs_its_first_token_in_time_only() -> None:
    asked = booking("a", max_tokens=1000, exact=False, deadline=1.0)
    assert isinstance(new_desk().ask(asked, 0.0), Admit)
    assert isinstance(new_desk().ask(replace(asked, exact=True), 0.0), Refuse)
    busy = with_long_answers(new_desk())
    let_in(busy, booking("b"))
    assert isinstance(busy.ask(asked, 0.0), Refuse)
    late = refused(new_desk(), replace(asked, prompt_tokens=500))
    assert late.arithmetic == "its first token takes 1.5 s even alone; its deadline is in 1.0 s"
    assert late.limit == "at least 1.7 s", "with a margin"


def with_long_answers(desk: Desk) -> Desk:
    for _ in range(10):
        desk.lengths.add(900, cut=False)
    return desk


def test_as_long_as_lengths_are_unknown_many_are_served_at_once() -> None:
    desk = new_desk()
    several = [booking(f"k{i}", max_tokens=1024, exact=False, deadline=5.0) for i in range(4)]
    let_in(desk, *several)
    known = with_long_answers(new_desk())
    let_in(known, several[0])
    assert refused(known, several[1]).reason == "deadline_unreachable"
    two = new_desk()
    let_in(two, several[0])
    near = booking("near", max_tokens=1024, exact=False, deadline=0.3)
    assert isinstance(two.ask(near, 0.0), Admit), "its first token comes in time, and more is not known"
    slow = replace(several[0], key="slow", prompt_tokens=2000)
    assert refused(desk, slow).reason == "deadline_unreachable", "its first token comes too late"


shadowed = st.lists(
    st.tuples(st.booleans(), st.integers(-1, 1), st.integers(1, 200), st.integers(1, 300), st.floats(0.05, 9.0)),
    max_size=8,
)


@given(shadowed, st.integers(-1, 1), st.integers(1, 400), st.booleans(), st.none() | st.floats(0.02, 6.0))
@settings(max_examples=300, deadline=None)
def test_a_shadow_changes_no_callers_verdict(
    before: list[tuple[bool, int, int, int, float]], priority: int, most: int, exact: bool, deadline: float | None
) -> None:
    with_them, without = new_desk(num_blocks=80, headroom=0), new_desk(num_blocks=80, headroom=0)
    for number, (shadow, each, prompt, tokens, seconds) in enumerate(before):
        there = booking(f"k{number}", priority=each, prompt_tokens=prompt, max_tokens=tokens, deadline=seconds)
        verdict = without.ask(there, 0.0)
        if shadow:
            there = replace(there, shadow=True, priority=-(2**62), deadline=None)
            if isinstance(with_them.ask(there, 0.0), Admit) and len(with_them.books) < 4:
                let_in(with_them, there)
                run_at_once(with_them, there.key)
        elif isinstance(verdict, Admit):
            without.enter(there, verdict, 0.0)
            beside = with_them.ask(there, 0.0)
            assert isinstance(beside, Admit)
            with_them.enter(there, beside, 0.0)
            assert callers(with_them) == callers(without)
            run_at_once(with_them, there.key)
            run_at_once(without, there.key)
        without.ask(booking("the same history"), 0.0)
        with_them.ask(booking("the same history"), 0.0)
    asked = booking("asked", priority=priority, max_tokens=most, exact=exact, deadline=deadline)
    one, other = with_them.ask(asked, 0.0), without.ask(asked, 0.0)
    assert type(one) is type(other)
    if isinstance(one, Refuse) and isinstance(other, Refuse):
        assert (one.reason, one.limit, one.arithmetic) == (other.reason, other.limit, other.arithmetic)
    if isinstance(one, Admit) and isinstance(other, Admit):
        shadows = {entry.booking.key for entry in with_them.books.entries if entry.booking.shadow}
        assert set(one.displaced) - shadows == set(other.displaced)


def callers(desk: Desk) -> set[str]:
    return {entry.booking.key for entry in desk.books.entries if not entry.booking.shadow}


def test_a_lone_caller_is_alone_beside_a_shadow() -> None:
    desk = with_long_answers(new_desk())
    shadow = booking("shadow", shadow=True, priority=-(2**62), max_tokens=400)
    let_in(desk, shadow)
    run_at_once(desk, "shadow")
    assert isinstance(desk.ask(booking("a", max_tokens=1000, exact=False, deadline=1.0), 0.0), Admit)


def test_shadows_go_where_somebody_would_be_late_beside_them() -> None:
    desk = new_desk()
    shadows = [booking(f"s{i}", shadow=True, priority=-(2**62), max_tokens=400) for i in range(3)]
    let_in(desk, *shadows)
    run_at_once(desk, "s0", "s1", "s2")
    near = desk.ask(booking("a", max_tokens=100, deadline=0.85), 0.0)
    assert isinstance(near, Admit) and set(near.displaced) == {"s0", "s1", "s2"}, "beside them it takes 1.4 s"
    far = desk.ask(booking("a", max_tokens=100, deadline=60.0), 0.0)
    assert isinstance(far, Admit) and far.displaced == ()


def test_after_a_slow_spell_an_idle_replica_lets_one_in_to_see_how_it_is_now() -> None:
    desk = new_desk()
    for number in range(200):
        for shape in (Shape(True, 32, 320), Shape(False, 4, 400)):
            desk.stepped(shape, 8 * PRICES.seconds(shape), ["z"], 32, number * 0.1)
    asked = booking("a", prompt_tokens=100, max_tokens=50, deadline=21.0)
    assert refused(desk, asked, 20.0).reason == "deadline_unreachable", "at eight times the price"
    later = replace(asked, arrival=27.0, deadline=28.0)
    probe = desk.ask(later, 27.0)
    assert isinstance(probe, Admit)
    assert isinstance(desk.ask(replace(later, deadline=27.2), 27.0), Refuse), "not even at its best"
    desk.enter(later, probe, 27.0)
    another = replace(later, key="b")
    assert isinstance(desk.ask(another, 27.0), Refuse), "one is enough"
    desk.forget("a")
    desk.stepped(Shape(True, 32, 320), 8 * PRICES.seconds(Shape(True, 32, 320)), ["a"], 32, 27.5)
    assert isinstance(desk.ask(replace(another, deadline=28.5), 27.5), Refuse), "it is as slow as it was"


def test_blocks_that_nobody_holds_take_room_when_they_are_found() -> None:
    """All of a prompt is in the cache: shared with one who runs, or to be held again."""
    asked = booking("a", prompt_tokens=320, hit_tokens=304, max_tokens=2)
    for shared, waits in ((304, False), (0, True)):
        desk = new_desk(num_blocks=40, headroom=0)
        let_in(desk, booking("b", prompt_tokens=400, max_tokens=100))
        run_at_once(desk, "b")
        verdict = desk.ask(replace(asked, shared_tokens=shared), 0.0)
        assert isinstance(verdict, Admit) and verdict.outlook is not None
        assert (verdict.outlook.wait > 0) is waits


def test_what_is_found_in_the_cache_is_not_computed() -> None:
    cold = new_desk().ask(booking("a", prompt_tokens=320), 0.0)
    warm = new_desk().ask(booking("a", prompt_tokens=320, hit_tokens=304), 0.0)
    assert isinstance(cold, Admit) and cold.outlook is not None
    assert isinstance(warm, Admit) and warm.outlook is not None
    assert cold.outlook.total - warm.outlook.total == pytest.approx(304 * PRICES.prefill_token, rel=0.05)


def test_who_finds_no_blocks_waits_for_them() -> None:
    """Condition (a): a seat is not enough."""
    desk = new_desk(num_blocks=40, headroom=0)
    let_in(desk, booking("a", prompt_tokens=500, max_tokens=100))
    run_at_once(desk, "a")
    verdict = desk.ask(booking("b", prompt_tokens=300), 0.0)
    assert isinstance(verdict, Admit) and verdict.outlook is not None
    assert verdict.outlook.wait == pytest.approx(99 * 0.0065, rel=0.05), "until a has ended"
    assert refused(desk, booking("b", prompt_tokens=300, deadline=1.5)).reason == "deadline_unreachable"


def test_a_pool_that_will_be_full_makes_somebody_give_way() -> None:
    """Both fit now, but not what they will have said."""
    wide, narrow = new_desk(num_blocks=100, headroom=0), new_desk(num_blocks=30, headroom=0)
    totals = []
    for desk in (wide, narrow):
        let_in(desk, booking("a", prompt_tokens=100, max_tokens=300))
        run_at_once(desk, "a")
        verdict = desk.ask(booking("b", prompt_tokens=100, max_tokens=300), 0.0)
        assert isinstance(verdict, Admit) and verdict.outlook is not None
        totals.append(verdict.outlook.total)
    assert totals[1] > 1.2 * totals[0]


def test_a_shadow_needs_free_blocks_as_well_as_a_seat() -> None:
    desk = new_desk(num_blocks=40, headroom=0)
    let_in(desk, booking("a", prompt_tokens=500))
    run_at_once(desk, "a")
    shadow = booking("s", prompt_tokens=300, shadow=True, priority=-(2**62))
    assert refused(desk, shadow).limit == "a free seat and blocks"
    assert isinstance(desk.ask(replace(shadow, prompt_tokens=50), 0.0), Admit)


def test_who_only_asks_again_is_not_more_demand() -> None:
    def demand(callers: list[str]) -> float:
        desk = new_desk()
        for number, caller in enumerate(callers):
            desk.ask(booking(f"k{number}", caller=caller), 0.0)
        return desk.judge.usual.load(0.0)

    assert demand(["salt/a"] * 20) == pytest.approx(demand(["salt/a"]))
    assert demand(["salt/a", "other/a"]) == pytest.approx(2 * demand(["salt/a"]))
    assert demand([""] * 20) == pytest.approx(20 * demand(["salt/a"]))


def full_line(seed: int, deadline: float | None) -> Desk:
    """32 run and 250 wait."""
    rng, desk = Random(seed), new_desk(max_running=32, max_waiting=256, num_blocks=8192)
    for _ in range(40):
        desk.lengths.add(rng.randint(20, 200), cut=False)
    for number in range(282):
        each = booking(f"k{number}", prompt_tokens=rng.randint(20, 300), max_tokens=400, exact=False, deadline=deadline)
        desk.enter(each, Admit(None), 0.0)
        if number < 32:
            run_at_once(desk, each.key)
    return desk


@pytest.mark.parametrize("seed", [1, 2])
def test_those_far_behind_are_foreseen_well_enough_without_following_each(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = full_line(seed, None)

    def ends() -> list[float]:
        trial = desk.judge.trial(0.0)
        assert trial is not None
        trial.walk()
        return [entry.finish_at for entry in desk.books.entries]

    quick = ends()
    monkeypatch.setattr(walk, "_EXACT_LINE", 1000)
    wrong = sorted(abs(one - exact) / exact for one, exact in zip(quick, ends(), strict=True))
    assert wrong[len(wrong) // 2] < 0.1 and wrong[int(len(wrong) * 0.9)] < 0.3, wrong


def test_a_verdict_takes_a_bounded_number_of_walks_however_long_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    take = Trial.walk

    def counted(self: Trial, *args: Any, **more: Any) -> Any:
        nonlocal walks
        walks += 1
        return take(self, *args, **more)

    monkeypatch.setattr(Trial, "walk", counted)
    desk = full_line(3, 90.0)
    for priority, deadline, most in [(0, 5.0, 8), (5, 1.0, 20), (5, 0.05, 20), (5, None, 20), (0, None, 8)]:
        walks = 0
        desk.ask(booking("x", priority=priority, deadline=deadline, prompt_tokens=200, max_tokens=100), 0.0)
        assert walks <= most, (priority, deadline)
    walks = 0
    hints = [desk.retry_after(booking(f"x{i}", deadline=5.0), 0.0) for i in range(192)]
    assert walks <= 8 and None not in hints, "those who are shed together hear the same"


def test_who_is_aside_and_has_time_is_not_looked_at_in_every_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, slack = list[float](), Trial.slack_alone

    def counted(self: Trial, entry: Entry, since: float = 0.0) -> float:
        if entry.booking.key == "aside":
            looks.append(self.now)
        return slack(self, entry, since)

    desk = new_desk(max_running=1)
    let_in(desk, booking("first", max_tokens=5000, priority=1))
    run_at_once(desk, "first")
    for key, deadline in (("before", 9.0), ("aside", 10.0)):
        desk.enter(booking(key, deadline=deadline, max_tokens=100), Admit(None), 0.0)
        desk.books.set_aside(key)
    monkeypatch.setattr(Trial, "slack_alone", counted)
    monkeypatch.setattr(Judge, "weigh", lambda judge, entry, trial, crowded: trial.check(entry, (), walk.NOBODY_ELSE))
    gone = [tenths / 10 for tenths in range(120) if "aside" in desk.sweep(tenths / 10).shed]
    assert gone and 9.0 < gone[0] < 9.4, "alone it takes 0.7 s, and a sweep more"
    seldom = [at for at in looks if at < 8.0]
    assert 8 <= len(seldom) <= 9, "once a second"


def test_one_that_is_lost_keeps_nobody_else_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices rose meanwhile, so that the first of those aside cannot be in time any more."""
    desk = new_desk(max_running=1)
    desk.enter(booking("lost", deadline=60.0, max_tokens=1000), Admit(None), 0.0)
    desk.enter(booking("behind", arrival=0.1, deadline=61.0, max_tokens=10), Admit(None), 0.0)
    for key in ("lost", "behind"):
        desk.books.set_aside(key)
    for entry in desk.books.aside:
        entry.hopeful_until = 30.0
    dear = Prices(*(10 * getattr(PRICES, field.name) for field in fields(PRICES)))
    monkeypatch.setattr(Estimator, "prices", dear)
    sweep = desk.sweep(0.2)
    assert sweep.shed == ("lost",) and sweep.back == ("behind",)


def slow_neighbour(desk: Desk, priority: int = 0) -> None:
    """One runs that has 0.1 s to spare."""
    let_in(desk, booking("early", max_tokens=100, deadline=0.95, priority=priority))
    run_at_once(desk, "early")


def test_nobody_is_let_in_who_would_make_another_late() -> None:
    """Condition (c)."""
    desk = new_desk()
    slow_neighbour(desk)
    verdict = refused(desk, booking("late", prompt_tokens=300, deadline=20.0))
    assert verdict.reason == "would_delay_others" and verdict.retry_after is not None
    assert verdict.arithmetic.startswith("1 request that was let in before would miss its deadline by")
    assert isinstance(desk.ask(booking("short", prompt_tokens=1, max_tokens=1, deadline=20.0), 0.0), Admit)


def test_without_the_look_at_others_it_would_be_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "hurt", lambda *_: [])
    desk = new_desk()
    slow_neighbour(desk)
    assert isinstance(desk.ask(booking("late", prompt_tokens=300, deadline=20.0), 0.0), Admit)


def test_a_higher_priority_displaces_whom_it_makes_late_and_nobody_else() -> None:
    desk = new_desk()
    slow_neighbour(desk)
    let_in(desk, booking("patient", prompt_tokens=2, max_tokens=4, deadline=60.0))
    verdict = desk.ask(booking("boss", priority=5, prompt_tokens=300, deadline=20.0), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("early",)
    desk.enter(booking("boss", priority=5, prompt_tokens=300, deadline=20.0), verdict, 0.0)
    assert {entry.booking.key for entry in desk.books.entries} == {"patient", "boss"}


def boss_beside_the_patient(desk: Desk) -> Booking:
    """A runner without a deadline would make the boss late."""
    let_in(desk, booking("patient", max_tokens=200))
    run_at_once(desk, "patient")
    boss = booking("boss", priority=5, max_tokens=100, deadline=1.0)
    verdict = desk.ask(boss, 0.0)
    assert isinstance(verdict, Admit) and (verdict.displaced, verdict.aside) == ((), ("patient",))
    desk.enter(boss, verdict, 0.0)
    assert [entry.booking.key for entry in desk.books.aside] == ["patient"] and len(desk.books) == 1
    return boss


def test_who_has_no_deadline_is_set_aside_and_comes_back_when_it_makes_nobody_late() -> None:
    desk = new_desk()
    boss_beside_the_patient(desk)
    run_at_once(desk, "boss")
    desk.preempted("patient")
    desk.progressed("boss", 1)
    assert desk.sweep(0.1).back == (), "the boss would be late"
    desk.ended("boss", whole=True, cut=True, now=0.7)
    assert desk.is_due
    assert desk.sweep(0.7).back == ("patient",)
    assert [entry.booking.key for entry in desk.books.line] == ["patient"]


def test_who_comes_back_before_it_has_left_its_seat_still_has_it() -> None:
    desk = new_desk()
    boss_beside_the_patient(desk)
    desk.ended("boss", whole=False, cut=True, now=0.0)
    desk.progressed("patient", 1)  # of the step that was under way
    assert desk.sweep(0.0).back == ("patient",)
    (patient,) = desk.books.running
    assert patient.generated > 0
    desk.preempted("patient")
    assert desk.books.line == [patient] and not desk.books.running


def test_who_was_set_aside_makes_no_lower_one_wait_for_ever() -> None:
    """It comes back although somebody below it would be late then: that one gives way, as to any other."""
    desk = new_desk()
    let_in(desk, booking("patient", priority=3, max_tokens=200))
    run_at_once(desk, "patient")
    boss = booking("boss", priority=5, max_tokens=100, deadline=1.0)
    verdict = desk.ask(boss, 0.0)
    assert isinstance(verdict, Admit) and verdict.aside == ("patient",)
    desk.enter(boss, verdict, 0.0)
    desk.ended("boss", whole=True, cut=True, now=0.7)
    let_in(desk, booking("small", max_tokens=100, deadline=1.7), now=0.7)
    assert desk.sweep(0.7).back == ("patient",)


def test_no_shadow_runs_while_a_caller_is_set_aside() -> None:
    desk = new_desk()
    boss_beside_the_patient(desk)
    desk.ended("boss", whole=True, cut=True, now=0.1)
    assert isinstance(desk.ask(booking("shadow", shadow=True, priority=-(2**62)), 0.1), Refuse)


def test_those_aside_count_in_a_full_line_and_make_room_for_higher_ones() -> None:
    desk = new_desk(max_running=1, max_waiting=1)
    boss_beside_the_patient(desk)
    assert refused(desk, booking("equal")).reason == "queue_full"
    verdict = desk.ask(booking("above", priority=1, max_tokens=1, prompt_tokens=1), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("patient",)
    desk.enter(booking("above", priority=1, max_tokens=1, prompt_tokens=1), verdict, 0.0)
    assert not desk.books.aside and desk.books.num_live == 2


def test_equals_are_not_displaced() -> None:
    desk = new_desk()
    slow_neighbour(desk, priority=5)
    assert isinstance(desk.ask(booking("boss", priority=5, prompt_tokens=300, deadline=20.0), 0.0), Refuse)


def test_nobody_is_displaced_in_vain() -> None:
    desk = new_desk()
    slow_neighbour(desk)
    verdict = refused(desk, booking("boss", priority=5, max_tokens=5000, deadline=2.0))
    assert verdict.reason == "deadline_unreachable"
    assert desk.books.get("early") is not None


def test_the_full_line_refuses_equals_and_makes_room_for_higher_ones() -> None:
    desk = new_desk(max_running=1, max_waiting=2)
    let_in(desk, booking("a"), booking("b", arrival=1.0), booking("c", arrival=2.0))
    full = desk.full(0, 0.0, shadow=False)
    assert full is not None and full.reason == "queue_full" and full.limit == "at most 2 requests"
    assert full.retry_after is not None and desk.full(1, 0.0, shadow=False) is None
    assert refused(desk, booking("d")).reason == "queue_full"
    verdict = desk.ask(booking("d", priority=1), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("c",), "the newest of the lowest"


def test_a_shadow_needs_a_free_seat_and_is_the_first_to_go() -> None:
    desk = new_desk(max_running=1)
    shadow = booking("shadow", shadow=True, priority=-(2**62))
    let_in(desk, shadow)
    run_at_once(desk, "shadow")
    assert desk.num_shadows == 1
    assert isinstance(desk.ask(replace(shadow, key="another"), 0.0), Refuse)
    assert not desk.refusing(0.0), "a shadow's refusal is nobody's loss"
    desk.preempted("shadow")
    assert desk.sweep(0.0).shed == ("shadow",), "it does not wait"
    run_at_once(desk, "shadow")
    verdict = desk.ask(booking("a", priority=-1000), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("shadow",)
    desk.enter(booking("a", priority=-1000), verdict, 0.0)
    assert desk.num_shadows == 0


def test_nobody_joins_the_step_that_is_under_way() -> None:
    desk = new_desk()
    let_in(desk, booking("a", prompt_tokens=300))
    asked = booking("b", prompt_tokens=10, max_tokens=2, deadline=5.0)
    step = UnderWay(Shape(True, 300, 300), started_at=0.0, tokens={"a": 300})
    desk.stepping(step)
    early = desk.ask(asked, 0.1)
    assert isinstance(early, Admit) and early.outlook is not None
    assert early.outlook.wait == pytest.approx(0.802), "the step takes 0.902 s"
    desk.stepping(None)
    later = desk.ask(asked, 0.1)
    assert isinstance(later, Admit) and later.outlook is not None and later.outlook.wait == 0


def test_prompts_take_turns_so_that_none_is_passed_over_for_long() -> None:
    """The second of two long prompts gets every ninth chunk, and what a third one leaves of its own."""
    desk = new_desk(age_bound=8, max_step_tokens=32)
    let_in(desk, booking("first", prompt_tokens=2000), booking("second", prompt_tokens=64, arrival=1.0))
    for key, tokens in (("first", 2000), ("second", 64)):
        desk.started(key, tokens, 0)
    trial = desk.judge.trial(0.0)
    assert trial is not None
    trial.walk()
    first, second = desk.books.get("first"), desk.books.get("second")
    assert first is not None and second is not None
    chunk = 0.002 + 32 * 0.003
    assert second.first_at == pytest.approx(18 * chunk, rel=0.15) and first.first_at > 60 * chunk


def test_who_waits_in_vain_is_named() -> None:
    desk = new_desk(max_running=1)
    let_in(desk, booking("a", max_tokens=100), booking("b", max_tokens=100, deadline=1.6))
    run_at_once(desk, "a")
    assert desk.sweep(0.0).shed == ()
    assert desk.sweep(1.0).shed == (), "a is not done yet and b takes 0.7 s, but it was only seen once"
    assert desk.sweep(1.1).shed == ("b",)


@pytest.mark.parametrize(("deadline", "waits"), [(None, True), (60.0, True), (2.0, False)])
def test_a_lower_one_goes_when_a_higher_one_takes_longer_than_was_thought(deadline: float | None, waits: bool) -> None:
    """Who has the time waits; who has not is told at once."""
    desk = new_desk()
    boss = booking("boss", priority=5, max_tokens=100, deadline=1.3)
    let_in(desk, boss, booking("low", max_tokens=100, deadline=deadline))
    run_at_once(desk, "boss", "low")
    assert desk.sweep(0.0) == Sweep()
    sweep, why = desk.sweep(0.3), "99 steps of two take 0.89 s, of one 0.64 s"
    assert (sweep.aside, sweep.shed) == ((("low",), ()) if waits else ((), ("low",))), why
    assert sweep.beneficiary == "boss" and not sweep.back
    assert [entry.booking.key for entry in desk.books.aside] == list(sweep.aside)


def test_who_waits_beside_the_line_is_in_nobodys_way_and_those_below_give_way_when_it_comes_back() -> None:
    desk = new_desk()
    let_in(desk, booking("boss", priority=9, max_tokens=100, deadline=1.0))
    run_at_once(desk, "boss")
    let_in(desk, booking("tiny", priority=1, max_tokens=2, deadline=60.0))
    run_at_once(desk, "tiny")
    desk.enter(booking("middle", priority=5, max_tokens=60, deadline=2.0), Admit(None), 0.0)
    desk.books.set_aside("middle")
    assert desk.sweep(0.0) == Sweep(), "the boss has no time to spare for it, and tiny is in nobody's way"
    low = booking("low", priority=3, prompt_tokens=1, max_tokens=300, deadline=60.0)
    desk.ended("boss", whole=True, cut=True, now=1.0)
    desk.enter(low, Admit(None), 1.0)
    run_at_once(desk, "low")
    sweep = desk.sweep(1.4)
    assert sweep.back == ("middle",) and set(sweep.shed + sweep.aside) <= {"tiny", "low"}
    assert sweep.beneficiary == "middle", "beside the others it would be late"


def test_who_was_set_aside_and_could_not_be_in_time_any_more_is_told_so() -> None:
    desk = new_desk()
    desk.enter(booking("middle", priority=5, max_tokens=60, deadline=3.0), Admit(None), 0.0)
    desk.books.set_aside("middle")
    let_in(desk, booking("boss", priority=9, max_tokens=400, deadline=3.5))
    run_at_once(desk, "boss")
    assert desk.sweep(1.0).shed == ()
    assert desk.sweep(2.8).shed == ("middle",)


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "start", "emit", "preempt", "end", "step", "sweep"]),
        st.integers(0, 30),
        st.integers(-2, 2),
        st.floats(0.01, 30.0),
    ),
    max_size=60,
)


def play(moves: list[tuple[str, int, int, float]]) -> list[object]:
    """Whatever comes in whatever order, of those who are there and those who are not."""
    desk, now, said = new_desk(max_running=2, max_waiting=4), 0.0, list[object]()
    inside: dict[str, int] = {}
    for number, (move, which, priority, seconds) in enumerate(moves):
        now += seconds / 30
        key = f"k{which}"
        match move:
            case "ask":
                asked = booking(
                    f"k{number}",
                    priority=priority,
                    arrival=now,
                    deadline=now + seconds if which % 3 else None,
                    prompt_tokens=1 + 20 * which,
                    max_tokens=1 + which,
                    exact=bool(which % 2),
                )
                desk.ask(asked, now)
                verdict = desk.ask(asked, now)
                assert desk.ask(asked, now) == verdict, "to ask again changes nothing"
                said.append(verdict)
                check_verdict(verdict, asked, inside)
                if isinstance(verdict, Admit):
                    check_aside(desk, verdict.aside)
                    desk.enter(asked, verdict, now)
                    inside = {other: p for other, p in inside.items() if other not in verdict.displaced}
                    inside[asked.key] = priority
            case "start":
                desk.started(key, 10, 2)
            case "emit":
                desk.progressed(key, 1)
            case "preempt":
                desk.preempted(key)
            case "end":
                desk.ended(key, whole=bool(priority), cut=priority > 0, now=now)
                inside.pop(key, None)
            case "step":
                desk.stepped(Shape(priority > 0, which + 1, which + 1), seconds / 100, [key], 1 + which, now)
            case "sweep":
                said.append(sweep := desk.sweep(now))
                assert {*sweep.shed, *sweep.aside, *sweep.back} <= set(inside)
                assert not set(sweep.aside) & set(sweep.back)
                check_aside(desk, sweep.aside)
        aside = {entry.booking.key for entry in desk.books.aside}
        present = {entry.booking.key for entry in desk.books.entries}
        assert present | aside == set(inside) and not present & aside
        ranks = [entry.rank for entry in desk.books.line]
        assert ranks == sorted(ranks)
        assert len(desk.books.line) + len(desk.books.running) == len(desk.books) <= desk.room.total
        assert len(inside) == desk.books.num_live <= desk.room.total
    return said


def check_aside(desk: Desk, keys: tuple[str, ...]) -> None:
    for key in keys:
        entry = desk.books.get(key)
        assert entry is not None and not entry.booking.shadow


def check_verdict(verdict: Admit | Refuse, asked: Booking, inside: dict[str, int]) -> None:
    if isinstance(verdict, Refuse):
        assert verdict.retry_after is None or 0 < verdict.retry_after <= 30
        assert verdict.arithmetic and verdict.limit
        return
    leaving = verdict.displaced + verdict.aside
    assert all(inside[key] < asked.priority for key in leaving), "only strictly lower ones give way"
    assert len(set(leaving)) == len(leaving)
    assert verdict.outlook is not None and isfinite(verdict.outlook.total)
    assert 0 <= verdict.outlook.wait <= verdict.outlook.total


@given(steps)
@settings(max_examples=150, deadline=None)
def test_the_books_are_whole_and_verdicts_sound_whatever_happens(moves: list[tuple[str, int, int, float]]) -> None:
    assert play(moves) == play(moves)
