"""Which requests are admitted, refused and displaced."""

from dataclasses import fields, replace
from math import isfinite
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast import simulation
from admission.forecast.bookings import NO_ARRIVALS, Admit, BookedRequest, Booking, Refuse
from admission.forecast.controller import AdmissionController
from admission.forecast.estimates import Estimator, StepInFlight, StepPace, StepPrices, StepShape
from admission.forecast.forecast import Forecast
from admission.forecast.sweep import QueueSweep
from tests.admission.forecast.builders import PRICES, admit_all, booking, new_controller, run_at_once

MARGIN = "the margin for errors and urgent requests is"


def refused(controller: AdmissionController, asked: Booking, now: float = 0.0) -> Refuse:
    verdict = controller.decide(asked, now)
    assert isinstance(verdict, Refuse), verdict
    return verdict


def test_an_idle_replica_forecasts_the_duration() -> None:
    verdict = new_controller().decide(booking("a", prompt_tokens=100, max_tokens=11, deadline=5.0), 0.0)
    assert isinstance(verdict, Admit) and verdict.outlook is not None
    assert verdict.outlook.wait == 0
    assert verdict.outlook.total == pytest.approx(0.302 + 10 * 0.0065, rel=0.01)
    assert verdict.outlook.slack == pytest.approx(5.0 - verdict.outlook.total)


def test_without_measurements_every_request_is_admitted() -> None:
    controller = new_controller(prices=None)
    verdict = controller.decide(booking("a", max_tokens=10**6, deadline=0.001), 0.0)
    assert verdict == Admit(None)
    assert controller.errors() is None and controller.usual_wait(0.0) is None


def test_a_deadline_that_cannot_be_reached_is_refused_with_its_arithmetic() -> None:
    controller = new_controller()
    verdict = refused(controller, booking("a", max_tokens=1000, deadline=5.0))
    assert verdict.reason == "deadline_unreachable" and verdict.retry_after is None, (
        "waiting would not help, so there is no retry hint"
    )
    own = "its own 1000 tokens take 6.5 s even alone"
    shown = f"{own} and {MARGIN} 0.7 s: 7.2 s in all; its deadline is in 5.0 s"
    assert verdict.arithmetic == shown and verdict.limit == "at least 7.2 s"
    assert not controller.is_refusing(0.5), "the deadline is too short on an idle replica, too"


def test_a_request_that_waits_for_others_gets_a_retry_hint() -> None:
    controller = new_controller(max_running=1)
    admit_all(controller, booking("a", max_tokens=500))
    run_at_once(controller, "a")
    verdict = refused(controller, booking("b", max_tokens=100, deadline=2.0))
    assert controller.is_refusing(0.5) and not controller.is_refusing(2.0)
    assert verdict.reason == "deadline_unreachable" and "of work is ahead of it" in verdict.arithmetic
    assert verdict.retry_after is not None
    back = verdict.retry_after
    assert 1.0 < back < 3.3, "request a takes 3.2 s, and b needs 0.7 s of its 2 s"
    shed = controller.retry_after(booking("b", max_tokens=100, deadline=2.0), 0.0)
    assert shed is not None and 1.0 < shed < 3.3


def test_a_lone_answer_of_unknown_length_needs_only_its_first_token_in_time() -> None:
    asked = booking("a", max_tokens=1000, exact=False, deadline=1.0)
    assert isinstance(new_controller().decide(asked, 0.0), Admit)
    assert isinstance(new_controller().decide(replace(asked, exact=True), 0.0), Refuse)
    busy = with_long_answers(new_controller())
    admit_all(busy, booking("b"))
    assert isinstance(busy.decide(asked, 0.0), Refuse)
    late = refused(new_controller(), replace(asked, prompt_tokens=500))
    shown = f"its first token takes 1.5 s even alone and {MARGIN} 0.2 s: 1.7 s in all; its deadline is in 1.0 s"
    assert late.arithmetic == shown and late.limit == "at least 1.7 s", "the limit includes a margin"


def with_long_answers(controller: AdmissionController) -> AdmissionController:
    for _ in range(10):
        controller.lengths.add(900, cut=False)
    return controller


def test_many_requests_run_at_once_while_lengths_are_unknown() -> None:
    controller = new_controller()
    several = [booking(f"k{i}", max_tokens=1024, exact=False, deadline=5.0) for i in range(4)]
    admit_all(controller, *several)
    known = with_long_answers(new_controller())
    admit_all(known, several[0])
    assert refused(known, several[1]).reason == "deadline_unreachable"
    two = new_controller()
    admit_all(two, several[0])
    near = booking("near", max_tokens=1024, exact=False, deadline=0.3)
    assert isinstance(two.decide(near, 0.0), Admit), (
        "the first token is in time, and the length of the answer is unknown"
    )
    slow = replace(several[0], key="slow", prompt_tokens=2000)
    assert refused(controller, slow).reason == "deadline_unreachable", "the first token is too late"


shadowed = st.lists(
    st.tuples(st.booleans(), st.integers(-1, 1), st.integers(1, 200), st.integers(1, 300), st.floats(0.05, 9.0)),
    max_size=8,
)


@given(shadowed, st.integers(-1, 1), st.integers(1, 400), st.booleans(), st.none() | st.floats(0.02, 6.0))
@settings(max_examples=300, deadline=None)
def test_a_shadow_changes_no_callers_verdict(
    before: list[tuple[bool, int, int, int, float]], priority: int, most: int, exact: bool, deadline: float | None
) -> None:
    with_them, without = new_controller(num_blocks=80, headroom=0), new_controller(num_blocks=80, headroom=0)
    for number, (shadow, each, prompt, tokens, seconds) in enumerate(before):
        there = booking(f"k{number}", priority=each, prompt_tokens=prompt, max_tokens=tokens, deadline=seconds)
        verdict = without.decide(there, 0.0)
        if shadow:
            there = replace(there, shadow=True, priority=-(2**62), deadline=None)
            if isinstance(with_them.decide(there, 0.0), Admit) and len(with_them.bookings) < 4:
                admit_all(with_them, there)
                run_at_once(with_them, there.key)
        elif isinstance(verdict, Admit):
            without.book(there, verdict, 0.0)
            beside = with_them.decide(there, 0.0)
            assert isinstance(beside, Admit)
            with_them.book(there, beside, 0.0)
            assert callers(with_them) == callers(without)
            run_at_once(with_them, there.key)
            run_at_once(without, there.key)
        without.decide(booking("the same history"), 0.0)
        with_them.decide(booking("the same history"), 0.0)
    asked = booking("asked", priority=priority, max_tokens=most, exact=exact, deadline=deadline)
    one, other = with_them.decide(asked, 0.0), without.decide(asked, 0.0)
    assert type(one) is type(other)
    if isinstance(one, Refuse) and isinstance(other, Refuse):
        assert (one.reason, one.limit, one.arithmetic) == (other.reason, other.limit, other.arithmetic)
    if isinstance(one, Admit) and isinstance(other, Admit):
        shadows = {entry.booking.key for entry in with_them.bookings.active if entry.booking.shadow}
        assert set(one.displaced) - shadows == set(other.displaced)


def callers(controller: AdmissionController) -> set[str]:
    return {entry.booking.key for entry in controller.bookings.active if not entry.booking.shadow}


def test_a_shadow_does_not_count_beside_a_lone_request() -> None:
    controller = with_long_answers(new_controller())
    shadow = booking("shadow", shadow=True, priority=-(2**62), max_tokens=400)
    admit_all(controller, shadow)
    run_at_once(controller, "shadow")
    assert isinstance(controller.decide(booking("a", max_tokens=1000, exact=False, deadline=1.0), 0.0), Admit)


def test_shadows_are_shed_if_they_would_make_a_request_late() -> None:
    controller = new_controller()
    shadows = [booking(f"s{i}", shadow=True, priority=-(2**62), max_tokens=400) for i in range(3)]
    admit_all(controller, *shadows)
    run_at_once(controller, "s0", "s1", "s2")
    near = controller.decide(booking("a", max_tokens=100, deadline=0.85), 0.0)
    assert isinstance(near, Admit) and set(near.displaced) == {"s0", "s1", "s2"}, 'with the shadows, "a" takes 1.4 s'
    far = controller.decide(booking("a", max_tokens=100, deadline=60.0), 0.0)
    assert isinstance(far, Admit) and far.displaced == ()


def test_after_a_slow_period_an_idle_replica_admits_a_request_to_measure_again() -> None:
    controller = new_controller()
    for number in range(200):
        for shape in (StepShape(True, 32, 320), StepShape(False, 4, 400)):
            controller.report_step(shape, 8 * PRICES.seconds(shape), 1, StepPace(32), number * 0.1)
    asked = booking("a", prompt_tokens=100, max_tokens=50, deadline=21.0)
    assert refused(controller, asked, 20.0).reason == "deadline_unreachable", "steps cost eight times as much"
    later = replace(asked, arrival=27.0, deadline=28.0)
    probe = controller.decide(later, 27.0)
    assert isinstance(probe, Admit)
    assert isinstance(controller.decide(replace(later, deadline=27.2), 27.0), Refuse), (
        "the request would be late even at normal speed"
    )
    controller.book(later, probe, 27.0)
    another = replace(later, key="b")
    assert isinstance(controller.decide(another, 27.0), Refuse), "one probe at a time"
    controller.forget("a")
    controller.report_step(
        StepShape(True, 32, 320), 8 * PRICES.seconds(StepShape(True, 32, 320)), 1, StepPace(32), 27.5
    )
    assert isinstance(controller.decide(replace(another, deadline=28.5), 27.5), Refuse), (
        "the probe found that steps are still slow"
    )


def test_cached_blocks_without_a_holder_take_room_when_hit() -> None:
    """All blocks of the prompt but the last are cached. If a running request holds them, they need no room. If no
    request holds them, they take free blocks."""
    asked = booking("a", prompt_tokens=320, hit_tokens=304, max_tokens=2)
    for shared, waits in ((304, False), (0, True)):
        controller = new_controller(num_blocks=40, headroom=0)
        admit_all(controller, booking("b", prompt_tokens=400, max_tokens=100))
        run_at_once(controller, "b")
        verdict = controller.decide(replace(asked, shared_tokens=shared, holder="b"), 0.0)
        assert isinstance(verdict, Admit) and verdict.outlook is not None
        assert (verdict.outlook.wait > 0) is waits


def test_cached_tokens_are_not_computed() -> None:
    cold = new_controller().decide(booking("a", prompt_tokens=320), 0.0)
    warm = new_controller().decide(booking("a", prompt_tokens=320, hit_tokens=304), 0.0)
    assert isinstance(cold, Admit) and cold.outlook is not None
    assert isinstance(warm, Admit) and warm.outlook is not None
    assert cold.outlook.total - warm.outlook.total == pytest.approx(304 * PRICES.prefill_token, rel=0.05)


def test_a_request_waits_for_blocks() -> None:
    """A free running slot is not enough: the pool must have enough free blocks too."""
    controller = new_controller(num_blocks=40, headroom=0)
    admit_all(controller, booking("a", prompt_tokens=500, max_tokens=100))
    run_at_once(controller, "a")
    verdict = controller.decide(booking("b", prompt_tokens=300), 0.0)
    assert isinstance(verdict, Admit) and verdict.outlook is not None
    assert verdict.outlook.wait == pytest.approx(99 * 0.0065, rel=0.05), "request b waits until request a has ended"
    assert refused(controller, booking("b", prompt_tokens=300, deadline=1.5)).reason == "deadline_unreachable"


def test_a_pool_that_will_be_full_preempts() -> None:
    """In the smaller pool, both prompts fit, but not together with the tokens that the requests will generate."""
    wide, narrow = new_controller(num_blocks=100, headroom=0), new_controller(num_blocks=30, headroom=0)
    totals = []
    for controller in (wide, narrow):
        admit_all(controller, booking("a", prompt_tokens=100, max_tokens=300))
        run_at_once(controller, "a")
        verdict = controller.decide(booking("b", prompt_tokens=100, max_tokens=300), 0.0)
        assert isinstance(verdict, Admit) and verdict.outlook is not None
        totals.append(verdict.outlook.total)
    assert totals[1] > 1.2 * totals[0]


def test_a_shadow_needs_free_blocks_and_a_free_slot() -> None:
    controller = new_controller(num_blocks=40, headroom=0)
    admit_all(controller, booking("a", prompt_tokens=500))
    run_at_once(controller, "a")
    shadow = booking("s", prompt_tokens=300, shadow=True, priority=-(2**62))
    assert refused(controller, shadow).limit == "room for another running request"
    assert isinstance(controller.decide(replace(shadow, prompt_tokens=50), 0.0), Admit)


def test_a_repeated_attempt_is_not_more_demand() -> None:
    def demand(callers: list[str]) -> float:
        controller = new_controller()
        for number, caller in enumerate(callers):
            controller.decide(booking(f"k{number}", caller=caller), 0.0)
        return controller.demand.load(0.0)

    assert demand(["salt/a"] * 20) == pytest.approx(demand(["salt/a"]))
    assert demand(["salt/a", "other/a"]) == pytest.approx(2 * demand(["salt/a"]))
    assert demand([""] * 20) == pytest.approx(20 * demand(["salt/a"]))


def full_queue(seed: int, deadline: float | None) -> AdmissionController:
    """Return a controller with 32 running and 250 waiting requests."""
    rng, controller = Random(seed), new_controller(max_running=32, max_waiting=256, num_blocks=8192)
    for _ in range(40):
        controller.lengths.add(rng.randint(20, 200), cut=False)
    for number in range(282):
        each = booking(f"k{number}", prompt_tokens=rng.randint(20, 300), max_tokens=400, exact=False, deadline=deadline)
        controller.book(each, Admit(None), 0.0)
        if number < 32:
            run_at_once(controller, each.key)
    return controller


@pytest.mark.parametrize("seed", [1, 2])
def test_requests_far_back_in_the_queue_are_forecast_without_simulating_each(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = full_queue(seed, None)

    def ends() -> list[float]:
        trial = controller.forecast(0.0)
        assert trial is not None
        timeline = trial.simulate()
        return [timeline[entry].finish_at for entry in controller.bookings.active]

    quick = ends()
    monkeypatch.setattr(simulation, "_EXACT_LINE", 1000)
    wrong = sorted(abs(one - exact) / exact for one, exact in zip(quick, ends(), strict=True))
    assert wrong[len(wrong) // 2] < 0.1 and wrong[int(len(wrong) * 0.9)] < 0.3, wrong


def test_a_decision_takes_a_bounded_number_of_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = 0
    take = Forecast.simulate

    def counted(self: Forecast, *args: Any, **more: Any) -> Any:
        nonlocal walks
        walks += 1
        return take(self, *args, **more)

    monkeypatch.setattr(Forecast, "simulate", counted)
    controller = full_queue(3, 90.0)
    for priority, deadline, most in [(0, 5.0, 8), (5, 1.0, 20), (5, 0.05, 20), (5, None, 20), (0, None, 8)]:
        walks = 0
        controller.decide(booking("x", priority=priority, deadline=deadline, prompt_tokens=200, max_tokens=100), 0.0)
        assert walks <= most, (priority, deadline)
    walks = 0
    hints = [controller.retry_after(booking(f"x{i}", deadline=5.0), 0.0) for i in range(192)]
    assert walks <= 8 and None not in hints, "requests that are shed together share a retry hint"


def test_a_suspended_request_with_time_is_not_checked_in_every_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, slack = list[float](), Forecast.slack_alone

    def counted(self: Forecast, entry: BookedRequest, since: float = 0.0) -> float:
        if entry.booking.key == "aside":
            looks.append(self.now)
        return slack(self, entry, since)

    controller = new_controller(max_running=1)
    admit_all(controller, booking("first", max_tokens=5000, priority=1))
    run_at_once(controller, "first")
    for key, deadline in (("before", 9.0), ("aside", 10.0)):
        controller.book(booking(key, deadline=deadline, max_tokens=100), Admit(None), 0.0)
        controller.bookings.suspend(key)
    monkeypatch.setattr(Forecast, "slack_alone", counted)
    monkeypatch.setattr(
        AdmissionController, "_evaluate", lambda self, entry, trial, crowded: trial.check(entry, (), NO_ARRIVALS)
    )
    gone = [tenths / 10 for tenths in range(120) if "aside" in controller.sweep(tenths / 10).shed]
    assert gone and 9.0 < gone[0] < 9.4, '"aside" takes 0.7 s alone, and is shed one sweep later'
    seldom = [at for at in looks if at < 8.0]
    assert 8 <= len(seldom) <= 9, '"aside" is checked about once a second'


def test_a_hopeless_request_keeps_no_other_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps have become so expensive that the first suspended request can no longer meet its deadline."""
    controller = new_controller(max_running=1)
    controller.book(booking("lost", deadline=60.0, max_tokens=1000), Admit(None), 0.0)
    controller.book(booking("behind", arrival=0.1, deadline=61.0, max_tokens=10), Admit(None), 0.0)
    for key in ("lost", "behind"):
        controller.bookings.suspend(key)
    for entry in controller.bookings.suspended:
        entry.recheck_at = 30.0
    dear = StepPrices(*(10 * getattr(PRICES, field.name) for field in fields(PRICES)))
    monkeypatch.setattr(Estimator, "prices", dear)
    sweep = controller.sweep(0.2)
    assert sweep.shed == ("lost",) and sweep.resumed == ("behind",)


def run_request_with_little_slack(controller: AdmissionController, priority: int = 0) -> None:
    """Admit and start a request that would meet its deadline with about 0.1 s to spare."""
    admit_all(controller, booking("early", max_tokens=100, deadline=0.95, priority=priority))
    run_at_once(controller, "early")


def test_a_request_that_would_make_another_late_is_refused() -> None:
    controller = new_controller()
    run_request_with_little_slack(controller)
    verdict = refused(controller, booking("late", prompt_tokens=300, deadline=20.0))
    assert verdict.reason == "would_delay_others" and verdict.retry_after is not None
    assert verdict.arithmetic.startswith("1 request that was admitted earlier would miss its deadline by")
    assert isinstance(controller.decide(booking("short", prompt_tokens=1, max_tokens=1, deadline=20.0), 0.0), Admit)


def test_without_the_check_of_others_the_request_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forecast, "_delayed", lambda *_: [])
    controller = new_controller()
    run_request_with_little_slack(controller)
    assert isinstance(controller.decide(booking("late", prompt_tokens=300, deadline=20.0), 0.0), Admit)


def test_a_higher_priority_displaces_only_requests_that_it_makes_late() -> None:
    controller = new_controller()
    run_request_with_little_slack(controller)
    admit_all(controller, booking("patient", prompt_tokens=2, max_tokens=4, deadline=60.0))
    verdict = controller.decide(booking("urgent", priority=5, prompt_tokens=300, deadline=20.0), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("early",)
    controller.book(booking("urgent", priority=5, prompt_tokens=300, deadline=20.0), verdict, 0.0)
    assert {entry.booking.key for entry in controller.bookings.active} == {"patient", "urgent"}


def book_urgent_request_that_suspends(controller: AdmissionController) -> Booking:
    """Admit and start "patient", and then admit "urgent", for which the controller suspends "patient". Return the
    booking of "urgent"."""
    admit_all(controller, booking("patient", max_tokens=200))
    run_at_once(controller, "patient")
    urgent = booking("urgent", priority=5, max_tokens=100, deadline=1.0)
    verdict = controller.decide(urgent, 0.0)
    assert isinstance(verdict, Admit) and (verdict.displaced, verdict.suspended) == ((), ("patient",))
    controller.book(urgent, verdict, 0.0)
    assert [entry.booking.key for entry in controller.bookings.suspended] == ["patient"] and len(
        controller.bookings
    ) == 1
    return urgent


def test_a_request_without_a_deadline_is_suspended_and_resumed() -> None:
    controller = new_controller()
    book_urgent_request_that_suspends(controller)
    run_at_once(controller, "urgent")
    controller.report_preempted("patient")
    controller.report_tokens("urgent", 1, 0.0)
    assert controller.sweep(0.1).resumed == (), 'with the resumed request, "urgent" would be late'
    controller.report_ended("urgent", whole=True, cut=True, now=0.7)
    assert controller.is_sweep_due
    assert controller.sweep(0.7).resumed == ("patient",)
    assert [entry.booking.key for entry in controller.bookings.line] == ["patient"]


def test_a_request_resumed_before_it_left_its_slot_keeps_the_slot() -> None:
    controller = new_controller()
    book_urgent_request_that_suspends(controller)
    controller.report_ended("urgent", whole=False, cut=True, now=0.0)
    controller.report_tokens("patient", 1, 0.0)  # This token comes from the step that was in flight.
    assert controller.sweep(0.0).resumed == ("patient",)
    (patient,) = controller.bookings.running
    assert patient.generated > 0
    controller.report_preempted("patient")
    assert controller.bookings.line == [patient] and not controller.bookings.running


def test_a_suspended_request_makes_no_lower_one_wait_for_ever() -> None:
    """The request "patient" is resumed although it makes "small" late: "small" has a lower priority."""
    controller = new_controller()
    admit_all(controller, booking("patient", priority=3, max_tokens=200))
    run_at_once(controller, "patient")
    urgent = booking("urgent", priority=5, max_tokens=100, deadline=1.0)
    verdict = controller.decide(urgent, 0.0)
    assert isinstance(verdict, Admit) and verdict.suspended == ("patient",)
    controller.book(urgent, verdict, 0.0)
    controller.report_ended("urgent", whole=True, cut=True, now=0.7)
    admit_all(controller, booking("small", max_tokens=100, deadline=1.7), now=0.7)
    assert controller.sweep(0.7).resumed == ("patient",)


def test_no_shadow_runs_while_a_caller_is_suspended() -> None:
    controller = new_controller()
    book_urgent_request_that_suspends(controller)
    controller.report_ended("urgent", whole=True, cut=True, now=0.1)
    assert isinstance(controller.decide(booking("shadow", shadow=True, priority=-(2**62)), 0.1), Refuse)


def test_suspended_requests_count_in_a_full_queue_and_yield_to_higher_ones() -> None:
    controller = new_controller(max_running=1, max_waiting=1)
    book_urgent_request_that_suspends(controller)
    assert refused(controller, booking("equal")).reason == "queue_full"
    verdict = controller.decide(booking("above", priority=1, max_tokens=1, prompt_tokens=1), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("patient",)
    controller.book(booking("above", priority=1, max_tokens=1, prompt_tokens=1), verdict, 0.0)
    assert not controller.bookings.suspended and controller.bookings.num_live == 2


def test_equals_are_not_displaced() -> None:
    controller = new_controller()
    run_request_with_little_slack(controller, priority=5)
    assert isinstance(controller.decide(booking("urgent", priority=5, prompt_tokens=300, deadline=20.0), 0.0), Refuse)


def test_no_request_is_displaced_without_effect() -> None:
    controller = new_controller()
    run_request_with_little_slack(controller)
    verdict = refused(controller, booking("urgent", priority=5, max_tokens=5000, deadline=2.0))
    assert verdict.reason == "deadline_unreachable"
    assert controller.bookings.get("early") is not None


def test_a_full_queue_refuses_equal_and_admits_higher_priorities() -> None:
    controller = new_controller(max_running=1, max_waiting=2)
    admit_all(controller, booking("a"), booking("b", arrival=1.0), booking("c", arrival=2.0))
    full = controller.refuse_if_full(0, 0.0, shadow=False)
    assert full is not None and full.reason == "queue_full" and full.limit == "at most 2 requests"
    assert full.retry_after is not None and controller.refuse_if_full(1, 0.0, shadow=False) is None
    assert refused(controller, booking("d")).reason == "queue_full"
    verdict = controller.decide(booking("d", priority=1), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("c",), (
        "the newest request of the lowest priority is displaced"
    )


def test_a_shadow_needs_a_free_slot_and_is_shed_first() -> None:
    controller = new_controller(max_running=1)
    shadow = booking("shadow", shadow=True, priority=-(2**62))
    admit_all(controller, shadow)
    run_at_once(controller, "shadow")
    assert controller.bookings.num_shadows == 1
    assert isinstance(controller.decide(replace(shadow, key="another"), 0.0), Refuse)
    assert not controller.is_refusing(0.0), "a refused shadow must not count as a refusal"
    controller.report_preempted("shadow")
    assert controller.sweep(0.0).shed == ("shadow",), "a shadow never waits"
    run_at_once(controller, "shadow")
    verdict = controller.decide(booking("a", priority=-1000), 0.0)
    assert isinstance(verdict, Admit) and verdict.displaced == ("shadow",)
    controller.book(booking("a", priority=-1000), verdict, 0.0)
    assert controller.bookings.num_shadows == 0


def test_no_request_joins_the_step_in_flight() -> None:
    controller = new_controller()
    admit_all(controller, booking("a", prompt_tokens=300))
    asked = booking("b", prompt_tokens=10, max_tokens=2, deadline=5.0)
    step = StepInFlight(StepShape(True, 300, 300), started_at=0.0, tokens={"a": 300})
    controller.in_flight = step
    early = controller.decide(asked, 0.1)
    assert isinstance(early, Admit) and early.outlook is not None
    assert early.outlook.wait == pytest.approx(0.802), "the step in flight takes 0.902 s"
    controller.in_flight = None
    later = controller.decide(asked, 0.1)
    assert isinstance(later, Admit) and later.outlook is not None and later.outlook.wait == 0


def test_a_newcomer_does_not_postpone_the_round_after_the_step_in_flight() -> None:
    """The step in flight ends the only prompt, so every decoding request takes a step before the newcomer's prompt."""
    controller = new_controller()
    admit_all(controller, booking("a"), booking("b", prompt_tokens=10))
    run_at_once(controller, "a")
    controller.report_started("b", 10, 0)
    controller.in_flight = StepInFlight(StepShape(True, 10, 55), started_at=0.0, tokens={"b": 10})
    verdict = controller.decide(booking("c", prompt_tokens=10, max_tokens=2), 0.0)
    assert isinstance(verdict, Admit) and verdict.outlook is not None
    prompt, a_round = 0.002 + 10 * 0.003, 0.004 + 2 * 0.0025
    assert verdict.outlook.first == pytest.approx(prompt + a_round + prompt)


def test_prompts_take_turns_so_that_none_is_passed_over_for_long() -> None:
    """No prompt is passed over for more than 8 chunks (`age_bound`), so the second prompt gets every ninth chunk."""
    controller = new_controller(age_bound=8, max_step_tokens=32)
    admit_all(controller, booking("first", prompt_tokens=2000), booking("second", prompt_tokens=64, arrival=1.0))
    for key, tokens in (("first", 2000), ("second", 64)):
        controller.report_started(key, tokens, 0)
    trial = controller.forecast(0.0)
    assert trial is not None
    timeline = trial.simulate()
    first, second = controller.bookings.get("first"), controller.bookings.get("second")
    assert first is not None and second is not None
    chunk = 0.002 + 32 * 0.003
    assert timeline[second].first_at == pytest.approx(18 * chunk, rel=0.15)
    assert timeline[first].first_at > 60 * chunk


def test_a_hopeless_request_is_shed() -> None:
    controller = new_controller(max_running=1)
    admit_all(controller, booking("a", max_tokens=100), booking("b", max_tokens=100, deadline=1.6))
    run_at_once(controller, "a")
    assert controller.sweep(0.0).shed == ()
    assert controller.sweep(1.0).shed == (), (
        "request a still runs and b needs 0.7 s, but only one sweep has found b late so far"
    )
    assert controller.sweep(1.1).shed == ("b",)


@pytest.mark.parametrize(("deadline", "waits"), [(None, True), (60.0, True), (2.0, False)])
def test_a_lower_request_leaves_when_a_higher_one_takes_longer(deadline: float | None, waits: bool) -> None:
    """The displaced request is suspended if it can still meet its deadline later, and shed otherwise."""
    controller = new_controller()
    urgent = booking("urgent", priority=5, max_tokens=100, deadline=1.3)
    admit_all(controller, urgent, booking("low", max_tokens=100, deadline=deadline))
    run_at_once(controller, "urgent", "low")
    assert controller.sweep(0.0) == QueueSweep()
    sweep, why = controller.sweep(0.3), "99 steps take 0.89 s with two requests and 0.64 s with one"
    assert (sweep.suspended, sweep.shed) == ((("low",), ()) if waits else ((), ("low",))), why
    assert sweep.beneficiary == "urgent" and not sweep.resumed
    assert [entry.booking.key for entry in controller.bookings.suspended] == list(sweep.suspended)


def test_a_suspended_request_is_resumed_at_the_cost_of_lower_ones() -> None:
    controller = new_controller()
    admit_all(controller, booking("urgent", priority=9, max_tokens=100, deadline=1.0))
    run_at_once(controller, "urgent")
    admit_all(controller, booking("tiny", priority=1, max_tokens=2, deadline=60.0))
    run_at_once(controller, "tiny")
    controller.book(booking("middle", priority=5, max_tokens=60, deadline=2.0), Admit(None), 0.0)
    controller.bookings.suspend("middle")
    assert controller.sweep(0.0) == QueueSweep(), (
        '"urgent" has no time to spare for "middle", and "tiny" delays no request'
    )
    low = booking("low", priority=3, prompt_tokens=1, max_tokens=300, deadline=60.0)
    controller.report_ended("urgent", whole=True, cut=True, now=1.0)
    controller.book(low, Admit(None), 1.0)
    run_at_once(controller, "low")
    sweep = controller.sweep(1.4)
    assert sweep.resumed == ("middle",) and set(sweep.shed + sweep.suspended) <= {"tiny", "low"}
    assert sweep.beneficiary == "middle", 'with the lower requests, "middle" would be late'


def test_a_suspended_request_that_became_hopeless_is_shed() -> None:
    controller = new_controller()
    controller.book(booking("middle", priority=5, max_tokens=60, deadline=3.0), Admit(None), 0.0)
    controller.bookings.suspend("middle")
    admit_all(controller, booking("urgent", priority=9, max_tokens=400, deadline=3.5))
    run_at_once(controller, "urgent")
    assert controller.sweep(1.0).shed == ()
    assert controller.sweep(2.8).shed == ("middle",)


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
    """Apply the moves, some of which name unknown requests, to a new controller. Return the controller's verdicts and
    sweeps."""
    controller, now, said = new_controller(max_running=2, max_waiting=4), 0.0, list[object]()
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
                controller.decide(asked, now)
                verdict = controller.decide(asked, now)
                assert controller.decide(asked, now) == verdict, "a repeated decision must be the same"
                said.append(verdict)
                check_verdict(verdict, asked, inside)
                if isinstance(verdict, Admit):
                    check_aside(controller, verdict.suspended)
                    controller.book(asked, verdict, now)
                    inside = {other: p for other, p in inside.items() if other not in verdict.displaced}
                    inside[asked.key] = priority
            case "start":
                controller.report_started(key, 10, 2)
            case "emit":
                controller.report_tokens(key, 1, 0.0)
            case "preempt":
                controller.report_preempted(key)
            case "end":
                controller.report_ended(key, whole=bool(priority), cut=priority > 0, now=now)
                inside.pop(key, None)
            case "step":
                controller.report_step(
                    StepShape(priority > 0, which + 1, which + 1), seconds / 100, 1, StepPace(1 + which), now
                )
            case "sweep":
                said.append(sweep := controller.sweep(now))
                assert {*sweep.shed, *sweep.suspended, *sweep.resumed} <= set(inside)
                assert not set(sweep.suspended) & set(sweep.resumed)
                check_aside(controller, sweep.suspended)
        aside = {entry.booking.key for entry in controller.bookings.suspended}
        present = {entry.booking.key for entry in controller.bookings.active}
        assert present | aside == set(inside) and not present & aside
        ranks = [entry.rank for entry in controller.bookings.line]
        assert ranks == sorted(ranks)
        bookings = controller.bookings
        assert len(bookings.line) + len(bookings.running) == len(bookings) <= controller.capacity.max_booked
        assert len(inside) == controller.bookings.num_live <= controller.capacity.max_booked
    return said


def check_aside(controller: AdmissionController, keys: tuple[str, ...]) -> None:
    for key in keys:
        entry = controller.bookings.get(key)
        assert entry is not None and not entry.booking.shadow


def check_verdict(verdict: Admit | Refuse, asked: Booking, inside: dict[str, int]) -> None:
    if isinstance(verdict, Refuse):
        assert verdict.retry_after is None or 0 < verdict.retry_after <= 30
        assert verdict.arithmetic and verdict.limit
        return
    leaving = verdict.displaced + verdict.suspended
    assert all(inside[key] < asked.priority for key in leaving), (
        "only requests of strictly lower priority may be displaced or suspended"
    )
    assert len(set(leaving)) == len(leaving)
    assert verdict.outlook is not None and isfinite(verdict.outlook.total)
    assert 0 <= verdict.outlook.wait <= verdict.outlook.total


@given(steps)
@settings(max_examples=150, deadline=None)
def test_bookings_and_decisions_stay_consistent(moves: list[tuple[str, int, int, float]]) -> None:
    assert play(moves) == play(moves)
