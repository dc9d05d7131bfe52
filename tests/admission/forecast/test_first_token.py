"""Deadlines of the first token, in addition to deadlines of the whole answer."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast.bookings import Admit, Booking, Refuse
from admission.forecast.controller import AdmissionController
from tests.admission.forecast.builders import admit_all, booking, new_controller, run_at_once


def one_slot(tokens: int = 100) -> AdmissionController:
    """Return a controller whose only running slot is held by the request "first", which generates `tokens` tokens. 100
    tokens take 0.64 s."""
    controller = new_controller(max_running=1)
    admit_all(controller, booking("first", max_tokens=tokens))
    run_at_once(controller, "first")
    return controller


def asked(controller: AdmissionController, one: Booking, now: float = 0.0) -> Admit | Refuse:
    verdict = controller.decide(one, now)
    assert isinstance(verdict, Admit | Refuse)
    return verdict


@pytest.mark.parametrize(("first", "is_admitted"), [(0.6, False), (0.9, True)])
def test_a_late_first_token_is_refused(first: float, is_admitted: bool) -> None:
    verdict = asked(one_slot(), booking("x", deadline=60.0, first_deadline=first))
    assert isinstance(verdict, Admit) is is_admitted
    if isinstance(verdict, Refuse):
        assert (verdict.reason, verdict.deadline) == ("deadline_unreachable", "first")
        assert "its first token takes" in verdict.arithmetic and "due in 0.6 s" in verdict.arithmetic
        assert verdict.retry_after is not None and 0.05 <= verdict.retry_after <= 0.9


def test_the_deadline_missed_by_more_is_named() -> None:
    verdict = asked(one_slot(), booking("x", max_tokens=400, deadline=1.0, first_deadline=0.6))
    assert isinstance(verdict, Refuse) and verdict.deadline == "end" and "its own 400 tokens" in verdict.arithmetic


def test_a_first_token_late_even_alone_gets_no_retry_hint() -> None:
    verdict = asked(one_slot(), booking("x", prompt_tokens=500, first_deadline=0.2))
    assert isinstance(verdict, Refuse) and verdict.retry_after is None and "even alone" in verdict.arithmetic


def test_no_request_is_pushed_past_its_first_token_deadline() -> None:
    """The new request "y" has an earlier first-token deadline than the waiting request "x", so it would run first."""
    controller = one_slot()
    admit_all(controller, booking("x", deadline=60.0, first_deadline=0.95))
    sooner = booking("y", max_tokens=100, deadline=20.0, first_deadline=0.9)
    verdict = asked(controller, sooner)
    assert isinstance(verdict, Refuse) and verdict.reason == "would_delay_others"
    assert isinstance(asked(controller, replace(sooner, first_deadline=2.5)), Admit), (
        'with a later deadline, "y" runs behind "x" and delays no request'
    )


def test_a_generated_first_token_cannot_be_late() -> None:
    controller = new_controller(max_running=1)
    admit_all(controller, booking("first", max_tokens=100, first_deadline=0.2))
    run_at_once(controller, "first")
    entry, trial = controller.bookings.get("first"), controller.forecast(9.0)
    assert entry is not None and trial is not None
    trial.simulate()
    assert entry.first_deadline is None and trial.slack_alone(entry) == inf
    assert controller.sweep(9.0).shed == ()
    controller.report_preempted("first")
    assert controller.sweep(9.0).shed == (), "a preempted request keeps its first token"


def test_a_hopeless_first_token_is_shed() -> None:
    controller = one_slot(300)
    controller.book(booking("x", deadline=60.0, first_deadline=1.0), Admit(None), 0.0)
    assert controller.sweep(0.0).shed == () and controller.sweep(0.1).shed == ("x",), (
        'two sweeps found "x" late: the slot is taken for 1.9 s'
    )


def test_lower_requests_are_displaced_for_a_first_token() -> None:
    controller = one_slot(300)
    urgent = booking("urgent", priority=5, deadline=60.0, first_deadline=0.5)
    verdict = asked(controller, urgent)
    assert isinstance(verdict, Admit) and verdict.suspended == ("first",)
    assert verdict.outlook is not None and verdict.outlook.slack is not None and 0 < verdict.outlook.slack < 0.5


def test_a_request_late_for_its_first_token_is_rescued() -> None:
    """A request of lower priority is suspended, because its steps would delay the first token of "urgent"."""
    controller = new_controller(max_running=2)
    for each in (
        booking("urgent", priority=5, prompt_tokens=200, max_tokens=20, deadline=60.0, first_deadline=0.7),
        booking("low", max_tokens=600),
        booking("next", max_tokens=600),
    ):
        controller.book(each, Admit(None), 0.0)
    run_at_once(controller, "low")
    swept = [controller.sweep(now) for now in (0.0, 0.02, 0.04, 0.06, 0.08)]
    assert any(sweep.beneficiary == "urgent" and sweep.suspended for sweep in swept)


times = st.none() | st.floats(0.05, 20.0)
lines = st.lists(st.tuples(st.integers(0, 3), times, times, st.integers(1, 60), st.integers(1, 80)), max_size=8)


def crowded(line: list[tuple[int, float | None, float | None, int, int]]) -> AdmissionController:
    controller = new_controller(max_running=2)
    for i, (priority, deadline, first, prompt, tokens) in enumerate(line):
        fields = {"priority": priority, "deadline": deadline, "first_deadline": first}
        controller.book(booking(f"k{i}", prompt_tokens=prompt, max_tokens=tokens, **fields), Admit(None), 0.0)
    return controller


@given(lines, st.integers(0, 3), times, st.integers(1, 60), st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_no_first_token_deadline_changes_nothing(
    line: list[tuple[int, float | None, float | None, int, int]],
    priority: int,
    deadline: float | None,
    prompt: int,
    tokens: int,
) -> None:
    controller = crowded(line)
    plain = booking("x", priority=priority, deadline=deadline, prompt_tokens=prompt, max_tokens=tokens)
    whenever = replace(plain, first_deadline=1e6)
    if deadline is None:
        plain = replace(plain, deadline=1e6)
    first, second = asked(controller, plain), asked(controller, whenever)
    assert type(first) is type(second)
    if isinstance(first, Admit) and isinstance(second, Admit):
        assert (first.displaced, first.suspended) == (second.displaced, second.suspended)


@given(lines, times, st.floats(0.05, 20.0), st.floats(1.0, 5.0), st.integers(1, 60), st.integers(1, 80))
@settings(max_examples=60, deadline=None)
def test_more_time_never_hurts_the_last_of_equal_requests(
    line: list[tuple[int, float | None, float | None, int, int]],
    deadline: float | None,
    first: float,
    more: float,
    prompt: int,
    tokens: int,
) -> None:
    """A later first-token deadline must not turn an admission into a refusal. The new request has the lowest priority,
    so the deadline does not change its place in the queue."""
    controller = crowded(line)
    fields = {"deadline": deadline, "prompt_tokens": prompt, "max_tokens": tokens}
    sooner = asked(controller, booking("x", priority=-1, first_deadline=first, **fields))
    later = asked(controller, booking("x", priority=-1, first_deadline=first * more, **fields))
    assert isinstance(later, Admit) or isinstance(sooner, Refuse)
