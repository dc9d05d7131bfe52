"""Laws (invariants) of the admission controller: which requests are suspended, rescued and resumed."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admission.forecast import forecast as forecasts
from admission.forecast.bookings import Admit, Booking, ExpectedDemand, Refuse
from admission.forecast.controller import FULL_DEMAND, SHARED_RETRY_SECONDS, AdmissionController
from admission.forecast.estimates import AnswerEstimate, EstimateBound, LoadCorrection
from admission.forecast.forecast import MAX_RETRY_SECONDS, SUSPEND_SLACK_FACTOR, split_departures
from tests.admission.forecast.builders import PRICES, admit_all, booking, new_controller, run_at_once

A_TOKEN = PRICES.decode_step + PRICES.decode_token
"""Seconds for a token of a request that runs alone."""
A_PROMISE = AnswerEstimate(0.0, EstimateBound(0.0, 0.1, 0.01), EstimateBound(0.0, 0.2, 0.02), 0.0)


def enter(controller: AdmissionController, *bookings: Booking, aside: bool = False) -> None:
    """Book the requests without asking the controller for a decision. If `aside` is true, suspend them."""
    for each in bookings:
        controller.book(each, Admit(None, estimate=A_PROMISE), 0.0)
        if aside:
            controller.bookings.suspend(each.key)


def suspended_keys(controller: AdmissionController) -> list[str]:
    return [entry.booking.key for entry in controller.bookings.suspended]


def controller_with_late_urgent_request(num_lower: int = 0) -> AdmissionController:
    """Return a controller with the running requests "urgent" and "low", and `num_lower` waiting requests. The deadline
    of "urgent" is at 1.3 s. Its remaining 99 steps take 0.89 s beside "low" and 0.64 s alone. If it makes no progress,
    it counts as late from 0.25 s on, because the forecast adds a safety margin."""
    controller = new_controller(max_running=2)
    enter(controller, booking("urgent", priority=5, max_tokens=100, deadline=1.3), booking("low", max_tokens=300))
    run_at_once(controller, "urgent", "low")
    enter(controller, *(booking(f"next{i}", arrival=0.1, max_tokens=300) for i in range(num_lower)))
    return controller


@pytest.mark.parametrize("num_lower", [0, 1, 3, 7])
@pytest.mark.parametrize("now", [0.25, 0.4, 0.6])
def test_no_lower_request_takes_the_slot_of_a_displaced_one(num_lower: int, now: float) -> None:
    """Suspending a request does not help "urgent" if the next request in the queue takes the freed slot."""
    controller = controller_with_late_urgent_request(num_lower=num_lower)
    sweep = controller.sweep(now)
    assert sweep.beneficiary == "urgent" and sweep.suspended[0] == "low"
    trial = controller.forecast(now)
    urgent = controller.bookings.get("urgent")
    assert trial is not None and urgent is not None
    timeline = trial.simulate()
    end = timeline[urgent].finish_at
    assert now + end < 1.3
    assert all(timeline[other].begun_at >= end for other in controller.bookings.active if other is not urgent)


def test_a_hopeless_request_does_not_prevent_the_rescue_of_the_next() -> None:
    controller = new_controller(max_running=3)
    lost = booking("lost", priority=9, max_tokens=50, deadline=0.35)
    enter(
        controller, lost, booking("urgent", priority=5, max_tokens=100, deadline=1.35), booking("low", max_tokens=300)
    )
    run_at_once(controller, "lost", "urgent", "low")
    sweep = controller.sweep(0.3)
    assert (sweep.beneficiary, sweep.suspended) == ("urgent", ("low",)), "no suspension makes 50 steps finish in 50 ms"


def test_no_request_is_suspended_for_a_request_that_is_late_anyway() -> None:
    controller = controller_with_late_urgent_request(num_lower=1)
    assert not controller.sweep(0.8).suspended and not suspended_keys(controller), "99 steps take 0.64 s even alone"


def test_a_request_within_the_margin_of_its_deadline_is_rescued() -> None:
    controller = controller_with_late_urgent_request()
    assert controller.sweep(0.62).suspended == ("low",), "0.64 s of work in 0.68 s leaves less than the margin"


def test_as_few_go_as_help_enough() -> None:
    """Three lower requests run together with "urgent", which is in time once one of them is suspended."""
    controller = new_controller(max_running=4)
    enter(controller, booking("urgent", priority=5, max_tokens=100, deadline=1.6))
    enter(controller, *(booking(f"low{i}", arrival=i / 10, max_tokens=300) for i in range(3)))
    run_at_once(controller, "urgent", "low0", "low1", "low2")
    assert controller.sweep(0.0).suspended == ("low2",), "the newest request is suspended"


@pytest.mark.parametrize("exact", [False, True])
def test_an_answer_of_unknown_length_is_not_given_up_before_its_deadline(exact: bool) -> None:
    """It may end at any token, however long it is expected to be. An answer of known length cannot."""
    controller = new_controller()
    for _ in range(20):
        controller.lengths.add(30, cut=False)
    admit_all(controller, booking("low"), booking("high", priority=9, max_tokens=400, exact=False, deadline=1.0))
    run_at_once(controller, "low", "high")
    controller.report_tokens("high", 60, 0.5)
    request = controller.bookings.get("high")
    assert request is not None and request.expected_left > 300, "it is longer than all that are known"
    request.booking = replace(request.booking, exact=exact)
    assert controller.sweep(0.5).suspended == (() if exact else ("low",))
    newcomer = controller.decide(booking("next"), 0.5)
    assert isinstance(newcomer, Admit if exact else Refuse), "what was given up is taken by no other of its priority"


@pytest.mark.parametrize(
    ("longest", "deadline", "priority", "keeps"),
    [
        pytest.param(100, 1.0, 0, True, id="an answer of 100 tokens is in time only alone"),
        pytest.param(400, 0.6, 0, True, id="of 400 tokens, 68 are in time alone"),
        pytest.param(100, 1.0, 9, False, id="no priority is lower"),
        pytest.param(30, 1.0, 0, False, id="30 tokens are in time beside the others"),
    ],
)
def test_the_highest_priority_is_kept_on_time_for_nearly_the_longest_answers(
    longest: int, deadline: float, priority: int, keeps: bool
) -> None:
    """Of the answers before, 94 % had 30 tokens. A deadline is otherwise held for 90 % of the answers."""
    controller = new_controller()
    for i in range(100):
        controller.lengths.add(longest if i % 16 == 0 else 30, cut=False)
    admit_all(controller, booking("top", priority=9, max_tokens=500, exact=False, deadline=deadline))
    enter(controller, *(booking(f"other{i}", priority=priority, max_tokens=300) for i in range(2)))
    run_at_once(controller, "top", "other0", "other1")
    newcomer = controller.decide(booking("newcomer", priority=priority), 0.0)
    assert isinstance(newcomer, Refuse if keeps else Admit)
    assert bool(controller.sweep(0.0).suspended) == keeps


def test_a_request_that_starts_later_is_not_suspended() -> None:
    controller = new_controller(max_running=2)
    urgent, low = booking("urgent", priority=5, max_tokens=100, deadline=1.3), booking("low", max_tokens=300)
    enter(controller, urgent, booking("peer", priority=5, max_tokens=140), low)
    run_at_once(controller, "urgent", "peer")
    assert not controller.sweep(0.3).suspended, (
        '"urgent" shares steps with its equal and is late; "low" does not start before "urgent" ends'
    )


def test_a_request_without_a_deadline_keeps_no_timed_one_suspended() -> None:
    controller = new_controller()
    enter(controller, booking("urgent", priority=9, max_tokens=100, deadline=1.1))
    run_at_once(controller, "urgent")
    enter(controller, booking("heavy", priority=5, prompt_tokens=400, max_tokens=60), aside=True)
    enter(controller, booking("timed", priority=4, prompt_tokens=1, max_tokens=2, deadline=0.5), aside=True)
    assert controller.sweep(0.0).resumed == ("timed",)
    assert suspended_keys(controller) == ["heavy"]


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_a_suspended_request_keeps_no_other_from_being_served(deadline: float | None) -> None:
    controller = new_controller()
    enter(
        controller,
        booking("urgent", priority=9, max_tokens=100, deadline=1.0),
        booking("tiny", priority=1, max_tokens=2),
    )
    run_at_once(controller, "urgent", "tiny")
    enter(controller, booking("heavy", priority=5, prompt_tokens=400, max_tokens=60, deadline=deadline), aside=True)
    sweep = controller.sweep(0.0)
    assert not sweep.suspended and not sweep.resumed and not sweep.shed


def test_of_two_resumable_requests_only_the_first_is_resumed() -> None:
    controller = new_controller()
    enter(controller, booking("urgent", priority=9, max_tokens=100, deadline=1.25))
    run_at_once(controller, "urgent")
    enter(controller, booking("a", max_tokens=200), booking("b", arrival=1.0, max_tokens=200), aside=True)
    assert controller.sweep(0.0).resumed == ("a",), (
        "99 steps take 0.89 s with two requests and 1.14 s with three, without the margin"
    )


@given(st.integers(0, 12), st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_an_idle_replica_resumes_all_requests_a_few_at_a_time(count: int, seed: int) -> None:
    rng, controller = Random(seed), new_controller(max_waiting=16)
    enter(
        controller,
        *(booking(f"k{i}", priority=rng.randrange(3), arrival=rng.random()) for i in range(count)),
        aside=True,
    )
    ranks = {entry.booking.key: entry.rank for entry in controller.bookings.suspended}
    back: list[str] = []
    while controller.bookings.suspended:
        some = controller.sweep(0.0).resumed
        assert 0 < len(some) <= 4
        back += some
    assert back == sorted(ranks, key=ranks.__getitem__)


def test_a_sweep_is_due_after_a_suspension_or_with_only_suspended_requests() -> None:
    controller = new_controller()
    due = [controller.is_sweep_due]
    enter(controller, booking("low"))
    controller.book(booking("urgent", priority=5, max_tokens=100, deadline=0.9), Admit(None, suspended=("low",)), 0.0)
    run_at_once(controller, "urgent")
    due.append(controller.is_sweep_due)
    enter(controller, booking("another", priority=5, max_tokens=100))
    due.append(controller.is_sweep_due)
    controller.report_ended("another", whole=True, cut=True, now=0.0)
    assert not controller.sweep(0.1).resumed
    due.append(controller.is_sweep_due)
    controller.report_ended("urgent", whole=True, cut=True, now=0.0)
    due.append(controller.is_sweep_due)
    assert controller.sweep(0.1).resumed == ("low",)
    assert [*due, controller.is_sweep_due] == [False, True, True, False, True, False]


def test_a_suspended_request_counts_in_a_full_queue() -> None:
    controller = new_controller(max_running=1, max_waiting=1)
    enter(controller, booking("urgent", priority=5))
    enter(controller, booking("patient", priority=1), aside=True)
    full = controller.refuse_if_full(1, 0.0, shadow=False)
    assert full is not None and full.reason == "queue_full" and controller.is_refusing(0.5)
    assert controller.refuse_if_full(2, 0.0, shadow=False) is None, (
        "a suspended request can be displaced by a higher one"
    )


def test_a_shadow_at_a_full_replica_is_not_counted_as_refused() -> None:
    controller = new_controller(max_running=1, max_waiting=0)
    enter(controller, booking("one"))
    assert controller.refuse_if_full(0, 0.0, shadow=True) is not None and not controller.is_refusing(0.0)


def test_a_hopeless_request_gets_no_retry_hint() -> None:
    controller = new_controller()
    enter(controller, booking("urgent", priority=9, max_tokens=100, deadline=0.9))
    enter(controller, booking("timed", priority=4, max_tokens=60, deadline=30.0), aside=True)
    verdict = controller.decide(booking("low", max_tokens=1000, deadline=2.0), 0.0)
    assert isinstance(verdict, Refuse) and verdict.reason == "deadline_unreachable" and verdict.retry_after is None
    behind = controller.decide(booking("other", max_tokens=10, deadline=2.0), 0.0)
    assert isinstance(behind, Refuse) and behind.reason == "would_delay_others" and behind.retry_after is not None


def test_a_suspended_request_is_not_compared_with_its_estimate() -> None:
    controller = new_controller()
    enter(controller, booking("low"), booking("other"))
    for key in ("low", "other"):
        run_at_once(controller, key)
    controller.book(booking("urgent", priority=5), Admit(None, suspended=("low",)), 0.0)
    controller.bookings.resume("low")
    controller.report_ended("low", whole=True, cut=False, now=9.0)
    assert controller.accuracy._num_requests == 0
    enter(controller, booking("plain"))
    run_at_once(controller, "plain")
    controller.report_ended("plain", whole=True, cut=False, now=9.0)
    assert controller.accuracy._num_requests == 1


@given(
    priority=st.integers(-3, 3),
    deadline=st.none() | st.floats(0.05, 20.0),
    first=st.none() | st.floats(0.05, 20.0),
    prompt=st.integers(1, 200),
    tokens=st.integers(1, 200),
    shadow=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_displaced_request_with_time_is_suspended(
    priority: int, deadline: float | None, first: float | None, prompt: int, tokens: int, shadow: bool
) -> None:
    controller = new_controller()
    asked = booking("k", priority=priority, deadline=deadline, prompt_tokens=prompt, max_tokens=tokens, shadow=shadow)
    enter(controller, replace(asked, first_deadline=first))
    trial, entry = controller.forecast(0.0), controller.bookings.get("k")
    assert trial is not None and entry is not None
    shed, suspended = split_departures(("k", "gone"), controller.bookings, trial)
    outcome = trial.simulate()[entry]
    takes = ((deadline, outcome.finish_at), (first, outcome.first_at))
    waits = not shadow and all(by is None or by > SUSPEND_SLACK_FACTOR * seconds for by, seconds in takes)
    assert suspended == (("k",) if waits else ()) and shed == (("gone",) if waits else ("k", "gone"))


def test_no_request_is_booked_twice() -> None:
    controller = new_controller()
    enter(controller, booking("a"), aside=True)
    with pytest.raises(ValueError, match="already"):
        enter(controller, booking("a"))


def test_a_late_report_of_a_start_leaves_a_request_suspended() -> None:
    controller = new_controller()
    enter(controller, booking("a"), aside=True)
    controller.report_started("a", 10, 0)
    assert not controller.bookings.running and not controller.bookings.line and suspended_keys(controller) == ["a"]
    controller.bookings.resume("a")
    assert [entry.booking.key for entry in controller.bookings.running] == ["a"], "the request may still hold its slot"


def test_requests_of_one_kind_share_a_retry_hint_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, hints = new_controller(), iter(range(1, 10_000))
    monkeypatch.setattr(controller, "_seconds_after_shedding", lambda booking, now: float(next(hints)) / 1000)
    timed, patient = booking("a", deadline=9.0), booking("b")
    first = controller.retry_after(timed, 0.0)
    assert controller.retry_after(timed, 0.09) == first
    assert controller.retry_after(patient, 0.0) != first
    assert controller.retry_after(booking("c", priority=1, deadline=9.0), 0.0) != first
    later = controller.retry_after(timed, SHARED_RETRY_SECONDS + 0.01)
    assert later != first
    assert controller.retry_after(timed, -1.0) != later, "the clock was set back, so the hint is computed again"
    for priority in range(2000):
        controller.retry_after(booking("d", priority=priority), 0.2)
    assert len(controller._retry_hints) <= 512


def busy_controller() -> AdmissionController:
    """Return a controller with one running slot, which is taken for 3.2 s."""
    controller = new_controller(max_running=1)
    admit_all(controller, booking("first", max_tokens=500))
    run_at_once(controller, "first")
    return controller


def test_requests_of_one_kind_shed_together_get_the_same_hint() -> None:
    controller = busy_controller()
    short, long = (booking(name, deadline=9.0, max_tokens=n) for name, n in (("x", 10), ("y", 1000)))
    assert controller.retry_after(short, 0.0) == controller.retry_after(long, 0.05)
    assert controller.retry_after(short, 0.06) != controller.retry_after(long, 0.06 + 2 * SHARED_RETRY_SECONDS)


@given(tokens=st.integers(50, 4000), spare=st.floats(0.3, 3.0), limited=st.booleans())
def test_a_retry_hint_is_enough_and_hardly_longer(tokens: int, spare: float, limited: bool) -> None:
    """A retry after the hinted time is admitted, and a retry after 40 % of it is not. Very long and very short hints
    are exempt."""
    controller = new_controller(max_running=1)
    admit_all(controller, booking("first", max_tokens=tokens, deadline=60.0 if limited else None))
    run_at_once(controller, "first")
    asked = booking("x", max_tokens=100, deadline=0.8 + spare)
    verdict = controller.decide(asked, 0.0)
    hints = [controller.retry_after(asked, 0.0)] + ([verdict.retry_after] if isinstance(verdict, Refuse) else [])

    def is_admitted(seconds: float) -> bool:
        """Return whether the request is admitted after "first" has run for `seconds`."""
        later = new_controller(max_running=1)
        first = booking("first", max_tokens=tokens, deadline=60.0 if limited else None)
        later.book(first, Admit(None), 0.0)
        run_at_once(later, "first")
        done = round(seconds / A_TOKEN)
        later.report_tokens("first", min(done, tokens - 2), 0.0)
        if done >= tokens - 1:
            later.report_ended("first", whole=True, cut=True, now=seconds)
        return isinstance(later.decide(replace(asked, arrival=seconds, deadline=seconds + 0.8 + spare), seconds), Admit)

    for seconds in hints:
        assert seconds is not None
        assert seconds >= 24.0 or is_admitted(seconds)
        assert seconds <= 0.1 or not is_admitted(seconds / 2.5)


@given(
    slots=st.integers(1, 4),
    runners=st.integers(1, 4),
    tokens=st.integers(100, 3000),
    spare=st.floats(0.1, 3.0),
    first=st.booleans(),
)
@example(slots=4, runners=3, tokens=1200, spare=0.1, first=False)
@example(slots=4, runners=3, tokens=1200, spare=0.7, first=False)
def test_a_request_that_follows_its_hints_is_admitted_before_long(
    slots: int, runners: int, tokens: int, spare: float, first: bool
) -> None:
    """A request that always retries after the hinted time is admitted at the sixth attempt at the latest."""
    runners = min(slots, runners)
    a_step = PRICES.decode_step + runners * PRICES.decode_token
    at, asked = 0.0, booking("x", max_tokens=100)
    for _ in range(6):
        controller = new_controller(max_running=slots)
        left = tokens - round(at / a_step)
        for each in range(runners if left > 2 else 0):
            controller.book(booking(f"r{each}", max_tokens=tokens), Admit(None), 0.0)
            run_at_once(controller, f"r{each}")
            controller.report_tokens(f"r{each}", tokens - left, 0.0)
        due = at + (0.1 if first else 0.8) + spare
        now = replace(asked, arrival=at, deadline=None if first else due, first_deadline=due if first else None)
        verdict = controller.decide(now, at)
        if isinstance(verdict, Admit):
            return
        assert verdict.retry_after is not None
        at += verdict.retry_after
    pytest.fail(f"still refused after {at:.1f} s of {tokens * a_step:.1f} s")


def test_a_request_that_would_delay_others_waits_for_the_last_of_them() -> None:
    controller = new_controller()
    enter(controller, booking("short", max_tokens=100, deadline=1.25), booking("long", max_tokens=200, deadline=2.2))
    run_at_once(controller, "short", "long")
    verdict = controller.decide(booking("x", prompt_tokens=300, deadline=60.0), 0.0)
    assert isinstance(verdict, Refuse) and verdict.reason == "would_delay_others" and verdict.retry_after is not None
    trial = controller.forecast(0.0)
    assert trial is not None
    ends = {each.booking.key: trial.simulate().long_finish(each) for each in controller.bookings.active}
    assert ends["short"] < verdict.retry_after == pytest.approx(ends["long"])


@pytest.mark.parametrize(("above", "factor"), [(0.0, 1.0), (FULL_DEMAND, 1.0), (2 * FULL_DEMAND, 2.0), (1000.0, inf)])
def test_a_hint_is_longer_if_higher_priorities_demand_more_than_a_replica_can_do(above: float, factor: float) -> None:
    """`above` is the demand of higher priorities: seconds of work per second. Jitter adds up to a quarter to a hint,
    so a hint without jitter is at most 4/5 of MAX_RETRY_SECONDS."""
    usual, busy = busy_controller(), busy_controller()
    busy.demand.add_asked(0.0, 5, 3.0 * above)
    asked = booking("x", max_tokens=100, deadline=2.0)
    expected, hint = usual.retry_after(asked, 0.0), busy.retry_after(asked, 0.0)
    assert expected is not None and hint == pytest.approx(min(expected * factor, 0.8 * MAX_RETRY_SECONDS))
    refused = busy.decide(asked, 0.0)
    assert isinstance(refused, Refuse) and refused.retry_after == pytest.approx(hint), "refused and shed alike"
    above_all = booking("y", priority=5, max_tokens=100, deadline=2.0)
    assert busy.retry_after(above_all, 0.0) == pytest.approx(usual.retry_after(above_all, 0.0))


def test_a_hint_for_a_full_queue_is_longer_too() -> None:
    hints = []
    for above in (0.0, 2 * FULL_DEMAND):
        controller = new_controller(max_running=1, max_waiting=1)
        enter(controller, booking("a", priority=5, max_tokens=100), booking("b", priority=5, max_tokens=100))
        run_at_once(controller, "a")
        controller.demand = ExpectedDemand()
        controller.demand.add_asked(0.0, 5, 3.0 * above)
        refused = controller.refuse_if_full(0, 0.0, shadow=False)
        assert refused is not None and refused.retry_after is not None
        hints.append(refused.retry_after)
    assert hints[1] == pytest.approx(2 * hints[0])


def test_a_request_shed_from_a_full_queue_waits_for_a_free_slot() -> None:
    controller = new_controller(max_running=1, max_waiting=1)
    enter(controller, booking("a", max_tokens=1000))
    run_at_once(controller, "a")
    enter(controller, booking("b", priority=1, max_tokens=1000))
    hint, trial = controller.retry_after(booking("shed", deadline=60.0), 0.0), controller.forecast(0.0)
    assert hint is not None and trial is not None and hint >= trial.seconds_to_first_end() > 1


def test_of_the_lowest_requests_one_without_a_deadline_is_displaced_first() -> None:
    controller = new_controller(max_running=1, max_waiting=1)
    enter(controller, booking("patient"), booking("timed", arrival=1.0, deadline=30.0))
    verdict = controller.decide(booking("above", priority=1, max_tokens=1), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("patient",)


def test_as_many_shadows_are_shed_as_slots_and_blocks_are_needed() -> None:
    controller = new_controller(max_running=4, num_blocks=32, headroom=0)
    for i in range(2):
        enter(controller, booking(f"s{i}", shadow=True, priority=-(2**62), arrival=float(i), prompt_tokens=160))
    for prompt, gone in ((100, ()), (300, ("s1",)), (500, ("s1", "s0"))):
        entry = controller.bookings.new_request(booking("a", prompt_tokens=prompt))
        assert forecasts.shadows_to_displace(entry, (), controller.bookings, controller.capacity) == gone
    assert forecasts.remaining_shadows(("s1",), controller.bookings) == ("s0",)


def test_an_answer_of_unknown_length_is_hopeless_only_by_its_first_token() -> None:
    controller = new_controller(max_running=1)
    enter(controller, booking("a", max_tokens=100), booking("b", max_tokens=100, exact=False, deadline=0.8))
    run_at_once(controller, "a")
    assert controller.sweep(0.0).shed == (), 'the first token of "b" comes after 0.68 s, which is in time'
    assert controller.sweep(0.3).shed == ()
    assert controller.sweep(0.31).shed == ("b",), 'the second sweep that finds "b" late sheds it'


def test_the_margin_also_applies_to_a_lone_request() -> None:
    controller = new_controller()
    enter(controller, booking("a", max_tokens=100, deadline=0.7), booking("b", max_tokens=100, deadline=0.75))
    trial = controller.forecast(0.0)
    late = [trial is not None and trial.slack_alone(entry) < 0 for entry in controller.bookings.active]
    assert late == [True, False], "each request needs 0.68 s alone, and a margin"


def test_delays_by_other_requests_do_not_count_as_forecast_errors() -> None:
    controller = new_controller()
    enter(controller, booking("a"), booking("b", priority=1))
    for key in ("a", "b"):
        run_at_once(controller, key)
        controller.report_ended(key, whole=True, cut=False, now=9.0)
    assert controller.accuracy._num_requests == 1, "only the request that was not overtaken counts"


def test_one_endless_answer_does_not_make_every_estimate_longer() -> None:
    hindsight = LoadCorrection()
    for _ in range(8):
        hindsight.learn(A_PROMISE, 10, 1e6)
    assert 1.0 <= hindsight.share(A_PROMISE.quiet.total(10)) <= 1.5
