"""Who is set aside, who is helped, who comes back when: laws of the desk that hold whatever the load."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.forecast import Admit, Booking, Desk, Refuse, shadows
from admission.forecast.desk import TOGETHER_SECONDS
from admission.forecast.promise import Bound, Hindsight, Promise
from admission.forecast.sweep import TIME_TO_WAIT, parted
from admission.forecast.told import Told
from tests.admission.forecast.builders import PRICES, booking, let_in, new_desk, run_at_once

A_TOKEN = PRICES.decode_step + PRICES.decode_token
"""Seconds, alone."""
A_PROMISE = Promise(0.0, 0.0, Bound(0.0, 0.1, 0.01), Bound(0.0, 0.2, 0.02), 0.0)


def enter(desk: Desk, *bookings: Booking, aside: bool = False) -> None:
    """Whatever the verdict would be."""
    for each in bookings:
        desk.enter(each, Admit(None, promise=A_PROMISE), 0.0)
        if aside:
            desk.books.set_aside(each.key)


def keys_aside(desk: Desk) -> list[str]:
    return [entry.booking.key for entry in desk.books.aside]


def boss_is_late_beside(num_lower: int = 0) -> Desk:
    """From 0.25 s on, if it made no progress: 99 steps of two take 0.89 s, of one 0.64 s."""
    desk = new_desk(max_running=2)
    enter(desk, booking("boss", priority=5, max_tokens=100, deadline=1.3), booking("low", max_tokens=300))
    run_at_once(desk, "boss", "low")
    enter(desk, *(booking(f"next{i}", arrival=0.1, max_tokens=300) for i in range(num_lower)))
    return desk


@pytest.mark.parametrize("num_lower", [0, 1, 3, 7])
@pytest.mark.parametrize("now", [0.25, 0.4, 0.6])
def test_nobody_lower_takes_the_seat_of_who_made_way(num_lower: int, now: float) -> None:
    """To send one away from beside the boss is no help where the next in line sits down in its place."""
    desk = boss_is_late_beside(num_lower=num_lower)
    sweep = desk.sweep(now)
    assert sweep.beneficiary == "boss" and sweep.aside[0] == "low"
    trial = desk.judge.trial(now)
    boss = desk.books.get("boss")
    assert trial is not None and boss is not None
    trial.walk()
    assert now + boss.finish_at < 1.3
    assert all(other.begun_at >= boss.finish_at for other in desk.books.entries if other is not boss)


def test_who_cannot_be_helped_takes_no_help_from_the_next() -> None:
    desk = new_desk(max_running=3)
    lost = booking("lost", priority=9, max_tokens=50, deadline=0.35)
    enter(desk, lost, booking("boss", priority=5, max_tokens=100, deadline=1.35), booking("low", max_tokens=300))
    run_at_once(desk, "lost", "boss", "low")
    sweep = desk.sweep(0.3)
    assert (sweep.beneficiary, sweep.aside) == ("boss", ("low",)), "50 steps are not done in 50 ms whoever goes"


def test_nobody_goes_for_who_is_late_whoever_goes() -> None:
    desk = boss_is_late_beside(num_lower=1)
    assert not desk.sweep(0.8).aside and not keys_aside(desk), "99 steps take 0.64 s even alone"


def test_the_margin_is_lost_and_the_deadline_is_not() -> None:
    desk = boss_is_late_beside()
    assert desk.sweep(0.62).aside == ("low",), "0.64 s of 0.68 s are left, less than the margin"


def test_as_few_go_as_help_enough() -> None:
    """Three low ones beside the boss; to be in time it needs one of them away."""
    desk = new_desk(max_running=4)
    enter(desk, booking("boss", priority=5, max_tokens=100, deadline=1.6))
    enter(desk, *(booking(f"low{i}", arrival=i / 10, max_tokens=300) for i in range(3)))
    run_at_once(desk, "boss", "low0", "low1", "low2")
    assert desk.sweep(0.0).aside == ("low2",), "the newest"


def test_who_begins_when_all_is_over_need_not_go() -> None:
    desk = new_desk(max_running=2)
    boss, low = booking("boss", priority=5, max_tokens=100, deadline=1.3), booking("low", max_tokens=300)
    enter(desk, boss, booking("peer", priority=5, max_tokens=140), low)
    run_at_once(desk, "boss", "peer")
    assert not desk.sweep(0.3).aside, "it is late beside its equal, and nobody lower is there before it ends"


def test_a_patient_one_that_may_not_come_back_keeps_no_timed_one_aside() -> None:
    desk = new_desk()
    enter(desk, booking("boss", priority=9, max_tokens=100, deadline=1.1))
    run_at_once(desk, "boss")
    enter(desk, booking("heavy", priority=5, prompt_tokens=400, max_tokens=60), aside=True)
    enter(desk, booking("timed", priority=4, prompt_tokens=1, max_tokens=2, deadline=0.5), aside=True)
    assert desk.sweep(0.0).back == ("timed",)
    assert keys_aside(desk) == ["heavy"]


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_who_waits_beside_the_line_keeps_nobody_from_being_served(deadline: float | None) -> None:
    desk = new_desk()
    enter(desk, booking("boss", priority=9, max_tokens=100, deadline=1.0), booking("tiny", priority=1, max_tokens=2))
    run_at_once(desk, "boss", "tiny")
    enter(desk, booking("heavy", priority=5, prompt_tokens=400, max_tokens=60, deadline=deadline), aside=True)
    sweep = desk.sweep(0.0)
    assert not sweep.aside and not sweep.back and not sweep.shed


def test_of_two_who_could_come_back_alone_one_does() -> None:
    desk = new_desk()
    enter(desk, booking("boss", priority=9, max_tokens=100, deadline=1.25))
    run_at_once(desk, "boss")
    enter(desk, booking("a", max_tokens=200), booking("b", arrival=1.0, max_tokens=200), aside=True)
    assert desk.sweep(0.0).back == ("a",), "99 steps of two take 0.89 s, of three 1.14 s, the margin not included"


@given(st.integers(0, 12), st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_all_come_back_to_an_idle_replica_a_few_at_a_time(count: int, seed: int) -> None:
    rng, desk = Random(seed), new_desk(max_waiting=16)
    enter(desk, *(booking(f"k{i}", priority=rng.randrange(3), arrival=rng.random()) for i in range(count)), aside=True)
    ranks = {entry.booking.key: entry.rank for entry in desk.books.aside}
    back: list[str] = []
    while desk.books.aside:
        some = desk.sweep(0.0).back
        assert 0 < len(some) <= 4
        back += some
    assert back == sorted(ranks, key=ranks.__getitem__)


def test_a_sweep_is_due_when_somebody_was_set_aside_or_nobody_else_is_there() -> None:
    desk = new_desk()
    due = [desk.is_due]
    enter(desk, booking("low"))
    desk.enter(booking("boss", priority=5, max_tokens=100, deadline=0.9), Admit(None, aside=("low",)), 0.0)
    run_at_once(desk, "boss")
    due.append(desk.is_due)
    enter(desk, booking("another", priority=5, max_tokens=100))
    due.append(desk.is_due)
    desk.ended("another", whole=True, cut=True, now=0.0)
    assert not desk.sweep(0.1).back
    due.append(desk.is_due)
    desk.ended("boss", whole=True, cut=True, now=0.0)
    due.append(desk.is_due)
    assert desk.sweep(0.1).back == ("low",)
    assert [*due, desk.is_due] == [False, True, True, False, True, False]


def test_who_is_aside_takes_a_place_in_a_full_house() -> None:
    desk = new_desk(max_running=1, max_waiting=1)
    enter(desk, booking("boss", priority=5))
    enter(desk, booking("patient", priority=1), aside=True)
    full = desk.full(1, 0.0, shadow=False)
    assert full is not None and full.reason == "queue_full" and desk.refusing(0.5)
    assert desk.full(2, 0.0, shadow=False) is None, "it would go for a higher one"


def test_a_shadow_before_a_full_house_is_no_refusal() -> None:
    desk = new_desk(max_running=1, max_waiting=0)
    enter(desk, booking("one"))
    assert desk.full(0, 0.0, shadow=True) is not None and not desk.refusing(0.0)


def test_who_is_hopeless_is_told_so_and_not_to_wait_for_others() -> None:
    desk = new_desk()
    enter(desk, booking("boss", priority=9, max_tokens=100, deadline=0.9))
    enter(desk, booking("timed", priority=4, max_tokens=60, deadline=30.0), aside=True)
    verdict = desk.ask(booking("low", max_tokens=1000, deadline=2.0), 0.0)
    assert isinstance(verdict, Refuse) and verdict.reason == "deadline_unreachable" and verdict.retry_after is None
    behind = desk.ask(booking("other", max_tokens=10, deadline=2.0), 0.0)
    assert isinstance(behind, Refuse) and behind.reason == "would_delay_others" and behind.retry_after is not None


def test_who_was_set_aside_is_not_compared_with_what_it_was_told() -> None:
    desk = new_desk()
    enter(desk, booking("low"), booking("other"))
    for key in ("low", "other"):
        run_at_once(desk, key)
    desk.enter(booking("boss", priority=5), Admit(None, aside=("low",)), 0.0)
    desk.books.call_back("low")
    desk.ended("low", whole=True, cut=False, now=9.0)
    assert desk.judge.kept._num_requests == 0
    enter(desk, booking("plain"))
    run_at_once(desk, "plain")
    desk.ended("plain", whole=True, cut=False, now=9.0)
    assert desk.judge.kept._num_requests == 1


@given(
    priority=st.integers(-3, 3),
    deadline=st.none() | st.floats(0.05, 20.0),
    first=st.none() | st.floats(0.05, 20.0),
    prompt=st.integers(1, 200),
    tokens=st.integers(1, 200),
    shadow=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_aside_goes_who_has_the_time(
    priority: int, deadline: float | None, first: float | None, prompt: int, tokens: int, shadow: bool
) -> None:
    desk = new_desk()
    asked = booking("k", priority=priority, deadline=deadline, prompt_tokens=prompt, max_tokens=tokens, shadow=shadow)
    enter(desk, replace(asked, first_deadline=first))
    trial, entry = desk.judge.trial(0.0), desk.books.get("k")
    assert trial is not None and entry is not None
    leaving = parted(("k", "gone"), desk.books, trial)
    trial.walk()
    takes = ((deadline, entry.finish_at), (first, entry.first_at))
    waits = not shadow and all(by is None or by > TIME_TO_WAIT * seconds for by, seconds in takes)
    assert leaving.aside == (("k",) if waits else ()) and leaving.shed == (("gone",) if waits else ("k", "gone"))


def test_nobody_is_in_the_books_twice() -> None:
    desk = new_desk()
    enter(desk, booking("a"), aside=True)
    with pytest.raises(ValueError, match="already"):
        enter(desk, booking("a"))


def test_news_of_a_seat_that_was_taken_leave_who_is_aside_aside() -> None:
    desk = new_desk()
    enter(desk, booking("a"), aside=True)
    desk.started("a", 10, 0)
    assert not desk.books.running and not desk.books.line and keys_aside(desk) == ["a"]
    desk.books.call_back("a")
    assert [entry.booking.key for entry in desk.books.running] == ["a"], "it may not have left its seat yet"


def test_what_one_class_was_told_is_known_for_a_moment() -> None:
    told = Told()
    timed, patient = booking("a", deadline=9.0), booking("b")
    told.note(timed, 0.0, 1.0)
    last = told.since(timed, 0.09, TOGETHER_SECONDS)
    assert last is not None and last.seconds == 1.0
    assert told.since(timed, 0.11, TOGETHER_SECONDS) is None
    assert told.since(patient, 0.0, TOGETHER_SECONDS) is None
    assert told.since(booking("c", priority=1, deadline=9.0), 0.0, TOGETHER_SECONDS) is None
    assert told.since(timed, -1.0, TOGETHER_SECONDS) is None, "a clock that was set back"
    for priority in range(2000):
        told.note(booking("d", priority=priority), 0.2, 1.0)
    assert len(told._last) <= 512


def busy_desk() -> Desk:
    """One seat, taken for 3.2 s."""
    desk = new_desk(max_running=1)
    let_in(desk, booking("first", max_tokens=500))
    run_at_once(desk, "first")
    return desk


def test_those_of_one_class_who_are_shed_together_are_told_the_same() -> None:
    desk = busy_desk()
    short, long = (booking(name, deadline=9.0, max_tokens=n) for name, n in (("x", 10), ("y", 1000)))
    assert desk.retry_after(short, 0.0) == desk.retry_after(long, 0.05)
    assert desk.retry_after(short, 0.06) != desk.retry_after(long, 0.06 + 2 * TOGETHER_SECONDS)


@given(tokens=st.integers(50, 4000), spare=st.floats(0.3, 3.0), limited=st.booleans())
def test_whoever_is_told_to_come_back_waits_for_what_is_there_and_hardly_longer(
    tokens: int, spare: float, limited: bool
) -> None:
    """Refused or shed, the first of its class or not: one seat is taken by so many tokens."""
    desk = new_desk(max_running=1)
    let_in(desk, booking("first", max_tokens=tokens, deadline=60.0 if limited else None))
    run_at_once(desk, "first")
    asked = booking("x", max_tokens=100, deadline=0.8 + spare)
    verdict = desk.ask(asked, 0.0)
    told = [desk.retry_after(asked, 0.0)] + ([verdict.retry_after] if isinstance(verdict, Refuse) else [])

    def is_welcome(seconds: float) -> bool:
        """The first has gone on for so long."""
        later = new_desk(max_running=1)
        first = booking("first", max_tokens=tokens, deadline=60.0 if limited else None)
        later.enter(first, Admit(None), 0.0)
        run_at_once(later, "first")
        done = round(seconds / A_TOKEN)
        later.progressed("first", min(done, tokens - 2))
        if done >= tokens - 1:
            later.ended("first", whole=True, cut=True, now=seconds)
        return isinstance(later.ask(replace(asked, arrival=seconds, deadline=seconds + 0.8 + spare), seconds), Admit)

    for seconds in told:
        assert seconds is not None
        assert seconds >= 24.0 or is_welcome(seconds)
        assert seconds <= 0.1 or not is_welcome(seconds / 2.5)


@given(
    seats=st.integers(1, 4),
    runners=st.integers(1, 4),
    tokens=st.integers(100, 3000),
    spare=st.floats(0.1, 3.0),
    first=st.booleans(),
)
@example(seats=4, runners=3, tokens=1200, spare=0.1, first=False)
@example(seats=4, runners=3, tokens=1200, spare=0.7, first=False)
def test_who_comes_back_as_told_is_let_in_before_long(
    seats: int, runners: int, tokens: int, spare: float, first: bool
) -> None:
    """Whether it would wait for a seat or share the steps of those who have one."""
    runners = min(seats, runners)
    a_step = PRICES.decode_step + runners * PRICES.decode_token
    at, asked = 0.0, booking("x", max_tokens=100)
    for _ in range(6):
        desk = new_desk(max_running=seats)
        left = tokens - round(at / a_step)
        for each in range(runners if left > 2 else 0):
            desk.enter(booking(f"r{each}", max_tokens=tokens), Admit(None), 0.0)
            run_at_once(desk, f"r{each}")
            desk.progressed(f"r{each}", tokens - left)
        due = at + (0.1 if first else 0.8) + spare
        now = replace(asked, arrival=at, deadline=None if first else due, first_deadline=due if first else None)
        verdict = desk.ask(now, at)
        if isinstance(verdict, Admit):
            return
        assert verdict.retry_after is not None
        at += verdict.retry_after
    pytest.fail(f"refused until {at:.1f} s of {tokens * a_step:.1f} s")


def test_who_would_make_others_late_is_told_when_the_last_of_them_has_ended() -> None:
    desk = new_desk()
    enter(desk, booking("short", max_tokens=100, deadline=1.25), booking("long", max_tokens=200, deadline=2.2))
    run_at_once(desk, "short", "long")
    verdict = desk.ask(booking("x", prompt_tokens=300, deadline=60.0), 0.0)
    assert isinstance(verdict, Refuse) and verdict.reason == "would_delay_others" and verdict.retry_after is not None
    trial = desk.judge.trial(0.0)
    assert trial is not None
    ends = {each.booking.key: trial.seconds_to_the_end([each]) for each in desk.books.entries}
    assert ends["short"] < verdict.retry_after == pytest.approx(ends["long"])


def test_who_is_shed_from_a_full_line_does_not_come_back_to_a_full_line() -> None:
    desk = new_desk(max_running=1, max_waiting=1)
    enter(desk, booking("a", max_tokens=1000))
    run_at_once(desk, "a")
    enter(desk, booking("b", priority=1, max_tokens=1000))
    told, trial = desk.retry_after(booking("shed", deadline=60.0), 0.0), desk.judge.trial(0.0)
    assert told is not None and trial is not None and told >= trial.seconds_to_an_end() > 1


def test_of_the_lowest_who_can_wait_goes_first() -> None:
    desk = new_desk(max_running=1, max_waiting=1)
    enter(desk, booking("patient"), booking("timed", arrival=1.0, deadline=30.0))
    verdict = desk.ask(booking("above", priority=1, max_tokens=1), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("patient",)


def test_as_many_shadows_go_as_seats_and_blocks_are_needed() -> None:
    desk = new_desk(max_running=4, num_blocks=32, headroom=0)
    for i in range(2):
        enter(desk, booking(f"s{i}", shadow=True, priority=-(2**62), arrival=float(i), prompt_tokens=160))
    for prompt, gone in ((100, ()), (300, ("s1",)), (500, ("s1", "s0"))):
        entry = desk.books.new_entry(booking("a", prompt_tokens=prompt))
        assert shadows.in_its_place(entry, (), desk.books, desk.room) == gone
    assert shadows.all_but(("s1",), desk.books) == ("s0",)


def test_who_may_say_little_waits_in_vain_only_for_its_first_token() -> None:
    desk = new_desk(max_running=1)
    enter(desk, booking("a", max_tokens=100), booking("b", max_tokens=100, exact=False, deadline=0.8))
    run_at_once(desk, "a")
    assert desk.sweep(0.0).shed == (), "the first token is there after 0.68 s"
    assert desk.sweep(0.3).shed == ()
    assert desk.sweep(0.31).shed == ("b",), "seen twice"


def test_alone_is_judged_with_the_margin_too() -> None:
    desk = new_desk()
    enter(desk, booking("a", max_tokens=100, deadline=0.7), booking("b", max_tokens=100, deadline=0.75))
    trial = desk.judge.trial(0.0)
    late = [trial is not None and trial.late_alone(entry) for entry in desk.books.entries]
    assert late == [True, False], "0.68 s alone"


def test_what_others_delayed_is_not_held_against_the_forecast() -> None:
    desk = new_desk()
    enter(desk, booking("a"), booking("b", priority=1))
    for key in ("a", "b"):
        run_at_once(desk, key)
        desk.ended(key, whole=True, cut=False, now=9.0)
    assert desk.judge.kept._num_requests == 1, "only of the one that nobody overtook"


def test_one_that_took_for_ever_does_not_make_every_promise_longer() -> None:
    hindsight = Hindsight()
    for _ in range(8):
        hindsight.learn(A_PROMISE, 10, 1e6)
    assert hindsight.share(0.0, A_PROMISE.quiet.total(10)) == 1.5
