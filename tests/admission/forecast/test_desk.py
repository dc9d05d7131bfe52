"""Who is let in, who is not, and who has to go."""

from dataclasses import replace
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast import Admit, Booking, Desk, Refuse, Shape, UnderWay
from admission.forecast.trial import Trial
from tests.admission.forecast.builders import booking, let_in, new_desk, run_at_once


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


def test_a_lone_answer_that_may_be_short_needs_its_first_token_in_time_only() -> None:
    asked = booking("a", max_tokens=1000, exact=False, deadline=1.0)
    assert isinstance(new_desk().ask(asked, 0.0), Admit)
    assert isinstance(new_desk().ask(replace(asked, exact=True), 0.0), Refuse)
    busy = new_desk()
    let_in(busy, booking("b"))
    assert isinstance(busy.ask(asked, 0.0), Refuse)
    assert isinstance(new_desk().ask(replace(asked, prompt_tokens=500), 0.0), Refuse)


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
    assert desk.hopeless(0.0) == ["shadow"], "it does not wait"
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
    trial = desk._trial(0.0)
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
    assert desk.hopeless(0.0) == []
    assert desk.hopeless(1.0) == ["b"], "a is not done yet and b takes 0.7 s"


def test_a_lower_one_goes_when_a_higher_one_takes_longer_than_was_thought() -> None:
    desk = new_desk()
    let_in(desk, booking("boss", priority=5, max_tokens=100, deadline=1.3), booking("low", max_tokens=100))
    run_at_once(desk, "boss", "low")
    assert desk.hopeless(0.0) == []
    assert desk.hopeless(0.3) == ["low"], "99 steps of two take 0.89 s, of one 0.64 s"


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
                assert set(desk.hopeless(now)) <= set(inside)
        assert {entry.booking.key for entry in desk.books.entries} == set(inside)
        ranks = [entry.rank for entry in desk.books.line]
        assert ranks == sorted(ranks)
        assert len(desk.books.line) + len(desk.books.running) == len(desk.books) <= desk.room.total
    return said


def check_verdict(verdict: Admit | Refuse, asked: Booking, inside: dict[str, int]) -> None:
    if isinstance(verdict, Refuse):
        assert verdict.retry_after is None or 0 < verdict.retry_after <= 30
        assert verdict.arithmetic and verdict.limit
        return
    assert all(inside[key] < asked.priority for key in verdict.displaced), "only strictly lower ones give way"
    assert verdict.outlook is not None and isfinite(verdict.outlook.total)
    assert 0 <= verdict.outlook.wait <= verdict.outlook.total


@given(steps)
@settings(max_examples=150, deadline=None)
def test_the_books_are_whole_and_verdicts_sound_whatever_happens(moves: list[tuple[str, int, int, float]]) -> None:
    assert play(moves) == play(moves)
