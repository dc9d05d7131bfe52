"""A deadline of the first token beside that of the whole answer."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast import Admit, Booking, Desk, Refuse
from tests.admission.forecast.builders import booking, let_in, new_desk, run_at_once


def one_seat(tokens: int = 100) -> Desk:
    """Taken for 0.64 s by 99 tokens."""
    desk = new_desk(max_running=1)
    let_in(desk, booking("first", max_tokens=tokens))
    run_at_once(desk, "first")
    return desk


def asked(desk: Desk, one: Booking, now: float = 0.0) -> Admit | Refuse:
    verdict = desk.ask(one, now)
    assert isinstance(verdict, Admit | Refuse)
    return verdict


@pytest.mark.parametrize(("first", "let_in"), [(0.6, False), (0.9, True)])
def test_who_would_have_its_first_token_too_late_is_refused(first: float, let_in: bool) -> None:
    verdict = asked(one_seat(), booking("x", deadline=60.0, first_deadline=first))
    assert isinstance(verdict, Admit) is let_in
    if isinstance(verdict, Refuse):
        assert (verdict.reason, verdict.deadline) == ("deadline_unreachable", "first")
        assert "its first token takes" in verdict.arithmetic and "due in 0.6 s" in verdict.arithmetic
        assert verdict.retry_after is not None and 0.05 <= verdict.retry_after <= 0.9


def test_the_deadline_that_is_missed_by_more_is_told() -> None:
    verdict = asked(one_seat(), booking("x", max_tokens=400, deadline=1.0, first_deadline=0.6))
    assert isinstance(verdict, Refuse) and verdict.deadline == "end" and "its own 400 tokens" in verdict.arithmetic


def test_who_could_not_have_it_in_time_even_alone_is_not_told_to_come_back() -> None:
    verdict = asked(one_seat(), booking("x", prompt_tokens=500, first_deadline=0.2))
    assert isinstance(verdict, Refuse) and verdict.retry_after is None and "even alone" in verdict.arithmetic


def test_nobody_is_pushed_past_the_deadline_of_its_first_token() -> None:
    """Whoever is due before it would take the seat."""
    desk = one_seat()
    let_in(desk, booking("x", deadline=60.0, first_deadline=0.95))
    sooner = booking("y", max_tokens=100, deadline=20.0, first_deadline=0.9)
    verdict = asked(desk, sooner)
    assert isinstance(verdict, Refuse) and verdict.reason == "would_delay_others"
    assert isinstance(asked(desk, replace(sooner, first_deadline=2.5)), Admit), "behind it there is no harm"


def test_a_first_token_that_is_there_is_late_no_more() -> None:
    desk = new_desk(max_running=1)
    let_in(desk, booking("first", max_tokens=100, first_deadline=0.2))
    run_at_once(desk, "first")
    entry, trial = desk.books.get("first"), desk.judge.trial(9.0)
    assert entry is not None and trial is not None
    trial.walk()
    assert entry.first_deadline is None and trial.slack_alone(entry) == inf
    assert desk.sweep(9.0).shed == ()
    desk.preempted("first")
    assert desk.sweep(9.0).shed == (), "nor when it lost its seat"


def test_who_waits_in_vain_for_its_first_token_goes() -> None:
    desk = one_seat(300)
    desk.enter(booking("x", deadline=60.0, first_deadline=1.0), Admit(None), 0.0)
    assert desk.sweep(0.0).shed == () and desk.sweep(0.1).shed == ("x",), "seen twice: the seat is taken for 1.9 s"


def test_for_a_first_token_others_below_give_way() -> None:
    desk = one_seat(300)
    boss = booking("boss", priority=5, deadline=60.0, first_deadline=0.5)
    verdict = asked(desk, boss)
    assert isinstance(verdict, Admit) and verdict.aside == ("first",)
    assert verdict.outlook is not None and verdict.outlook.slack is not None and 0 < verdict.outlook.slack < 0.5


def test_one_that_is_late_for_its_first_token_is_helped() -> None:
    """Of two who share the steps of prompts, the lower one goes aside."""
    desk = new_desk(max_running=2)
    for each in (
        booking("boss", priority=5, prompt_tokens=200, max_tokens=20, deadline=60.0, first_deadline=0.7),
        booking("low", max_tokens=600),
        booking("next", max_tokens=600),
    ):
        desk.enter(each, Admit(None), 0.0)
    run_at_once(desk, "low")
    swept = [desk.sweep(now) for now in (0.0, 0.02, 0.04, 0.06, 0.08)]
    assert any(sweep.beneficiary == "boss" and sweep.aside for sweep in swept)


times = st.none() | st.floats(0.05, 20.0)
lines = st.lists(st.tuples(st.integers(0, 3), times, times, st.integers(1, 60), st.integers(1, 80)), max_size=8)


def crowded(line: list[tuple[int, float | None, float | None, int, int]]) -> Desk:
    desk = new_desk(max_running=2)
    for i, (priority, deadline, first, prompt, tokens) in enumerate(line):
        fields = {"priority": priority, "deadline": deadline, "first_deadline": first}
        desk.enter(booking(f"k{i}", prompt_tokens=prompt, max_tokens=tokens, **fields), Admit(None), 0.0)
    return desk


@given(lines, st.integers(0, 3), times, st.integers(1, 60), st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_a_first_token_that_may_come_any_time_changes_nothing(
    line: list[tuple[int, float | None, float | None, int, int]],
    priority: int,
    deadline: float | None,
    prompt: int,
    tokens: int,
) -> None:
    desk = crowded(line)
    plain = booking("x", priority=priority, deadline=deadline, prompt_tokens=prompt, max_tokens=tokens)
    whenever = replace(plain, first_deadline=1e6)
    if deadline is None:
        plain = replace(plain, deadline=1e6)
    first, second = asked(desk, plain), asked(desk, whenever)
    assert type(first) is type(second)
    if isinstance(first, Admit) and isinstance(second, Admit):
        assert (first.displaced, first.aside) == (second.displaced, second.aside)


@given(lines, times, st.floats(0.05, 20.0), st.floats(1.0, 5.0), st.integers(1, 60), st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_among_equals_behind_everybody_more_time_never_hurts(
    line: list[tuple[int, float | None, float | None, int, int]],
    deadline: float | None,
    first: float,
    more: float,
    prompt: int,
    tokens: int,
) -> None:
    """It is the lowest: whatever its hurry, it stands behind all others."""
    desk = crowded(line)
    fields = {"deadline": deadline, "prompt_tokens": prompt, "max_tokens": tokens}
    sooner = asked(desk, booking("x", priority=-1, first_deadline=first, **fields))
    later = asked(desk, booking("x", priority=-1, first_deadline=first * more, **fields))
    assert isinstance(later, Admit) or isinstance(sooner, Refuse)
