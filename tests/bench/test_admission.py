from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.admission.load import (
    ENDS,
    SYSTEMS,
    FollowedRefusal,
    Mix,
    Offer,
    OfferOutcome,
    Plan,
    ReplicaSetup,
    Run,
    System,
    count_outcomes,
    drawn,
    step_loop,
)
from bench.admission.report import class_records, load_records, missed_while_lower_served, within_factor
from bench.admission.simulated import (
    GRAIN,
    LoadSimulation,
    OpenAdmission,
    QueueAdmission,
    capacity,
    ratio,
    run,
    simulate,
)
from bench.slow_periods import SlowPeriods
from octet.clock import ManualClock
from specialist.scheduling.step import Emitted, Event

PLANT = ReplicaSetup()
SOURCE = drawn(PLANT.context)


def small_plan(seconds: float = 20.0, loads: tuple[float, ...] = (1.0, 10.0), seeds: Sequence[int] = (1,)) -> Plan:
    return Plan(PLANT, SOURCE, Mix(), loads, seconds, seeds)


@cache
def rate() -> float:
    return capacity(PLANT, SOURCE, seed=7)


@cache
def played(load: float, system: System, seed: int, seconds: float = 20.0) -> Run:
    plan = small_plan(seconds)
    asked = plan.offers(load, rate(), seed)
    return run(plan, asked, load, system, seed)


def offer(number: int = 0, priority: int = 1, at: float = 0.0, patience: float = 1.0) -> Offer:
    return Offer(number, at, priority, 10, 5, 5, patience, work=0.1)


def test_refusals_in_slow_periods_are_shown_separately() -> None:
    refused = [
        OfferOutcome(offer(), "refused", at, latency=latency, asked=at) for at, latency in ((1.0, 0.5), (2.0, 0.004))
    ]
    outcomes = [*refused, OfferOutcome(offer(), "in time", 2.0)]
    run = Run(10.0, "octet", 1, (0.0, 3.0), outcomes, None, (), slow_periods=SlowPeriods([(0.9, 1.1)]))
    figures = {record.metric: record.value for record in load_records([run])}
    assert figures["refusal, p99"] == 500 and figures["refusal outside slow periods, p99"] == 4
    assert figures["refusals in slow periods"] == 50
    unseen = {record.metric for record in load_records([replace(run, slow_periods=None)])}
    assert "refusal outside slow periods, p99" not in unseen and "refusals in slow periods" not in unseen


def test_capacity_is_reproducible_and_exceeds_serial_execution() -> None:
    assert rate() == capacity(PLANT, SOURCE, seed=7)
    assert 1.0 < rate() < PLANT.max_running
    alone = capacity(replace(PLANT, max_running=1, noise=0.0, stalls=0.0), SOURCE, seed=7)
    assert alone == pytest.approx(1.0, rel=0.01)


def test_too_little_work_to_measure_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="too little"):
        capacity(PLANT, SOURCE, seed=7, work=0.1)


@pytest.mark.parametrize("system", ["octet", "fcfs", "priority"])
@pytest.mark.parametrize("load", [1.0, 10.0])
def test_every_offer_ends_once(load: float, system: System) -> None:
    outcomes = played(load, system, seed=1).outcomes
    numbers = [outcome.offer.number for outcome in outcomes]
    assert sorted(numbers) == list(range(len(numbers)))
    whole = count_outcomes(outcomes, (0.0, 20.0))
    assert whole.offered == sum(whole.ends.values()) == len(outcomes)
    assert whole.ends["refused"] == sum(whole.refusals.values())
    assert whole.offered == whole.admitted + whole.ends["refused"]
    assert whole.ends["failed"] == whole.ends["cancelled"] == 0
    classes = [
        count_outcomes([each for each in outcomes if each.offer.priority == priority], (0.0, 20.0))
        for priority in Mix().priorities
    ]
    assert sum((each.ends for each in classes), Counter()) == +whole.ends
    assert sum(each.tokens for each in classes) == pytest.approx(whole.tokens)


@pytest.mark.parametrize("system", ["octet", "fcfs", "priority"])
def test_the_same_seed_gives_the_same_table(system: System) -> None:
    def table() -> object:
        one = run(plan, asked, 5.0, system, seed=3)
        records = [*class_records([one], plan.mix.priorities), *load_records([one])]
        return [record for record in records if not record.metric.startswith("CPU of")]

    plan = small_plan(seconds=8.0)
    asked = plan.offers(5.0, rate(), seed=3)
    assert table() == table()


def test_cpu_time_of_a_refusal_is_recorded() -> None:
    refused = [each for each in played(10.0, "octet", seed=1).outcomes if each.end == "refused"]
    assert len(refused) > 20 and all(each.cpu is not None and 0 <= each.cpu < 1 for each in refused)
    assert all(each.cpu is None for each in played(10.0, "fcfs", seed=1).outcomes)
    figures = {record.metric: record.value for record in load_records([played(10.0, "octet", seed=1)])}
    assert 0 < figures["CPU of a refusal, p50"] <= figures["CPU of a refusal, p99"] < 1000


@pytest.mark.slow
def test_following_refusals_changes_no_outcome() -> None:
    plan = small_plan(seconds=40.0)
    asked = plan.offers(4.0, rate(), seed=2)
    followed = run(plan, asked, 4.0, "octet", seed=2)
    assert followed.followed_refusals
    unwatched = run(replace(plan, seconds=20.0), asked, 4.0, "octet", seed=2)
    assert not unwatched.followed_refusals
    assert [_end_of(each) for each in followed.outcomes] == [_end_of(each) for each in unwatched.outcomes]


def _end_of(outcome: OfferOutcome) -> tuple[int, str, float, str]:
    return outcome.offer.number, outcome.end, outcome.at, outcome.reason


@given(
    ends=st.lists(st.tuples(st.sampled_from(ENDS), st.sampled_from((9, 3)), st.floats(0, 30)), max_size=30),
    window=st.tuples(st.floats(0, 10), st.floats(11, 30)),
)
def test_only_answers_in_time_within_the_window_count_for_rates(
    ends: list[tuple[str, int, float]], window: tuple[float, float]
) -> None:
    outcomes = [OfferOutcome(offer(i, priority), end, at) for i, (end, priority, at) in enumerate(ends)]  # type: ignore[arg-type]
    counted = count_outcomes(outcomes, window)
    good = sum(end == "in time" and window[0] <= at < window[1] for end, _, at in ends)
    assert counted.answers == pytest.approx(good / (window[1] - window[0]))
    assert counted.tokens == pytest.approx(15 * good / (window[1] - window[0]))


@pytest.mark.parametrize("by_priority", [False, True], ids=["fcfs", "priority"])
def test_served_below_uses_the_priority_of_the_caller(by_priority: bool) -> None:
    clock = ManualClock()
    system = QueueAdmission(step_loop(PLANT, clock, seed=1), clock, length=4, by_priority=by_priority)
    assert system.ask(offer(1, priority=3).request()) is None
    assert system.step()
    assert [system.serves_below(priority) for priority in (0, 3, 5)] == [False, False, True]


def test_a_miss_counts_unless_all_lower_priorities_were_shed() -> None:
    missed = OfferOutcome(offer(1, priority=5, at=10.0, patience=2.0), "late", 12.0)
    given_up = replace(missed, end="given up")
    served = OfferOutcome(offer(2, priority=3, at=9.0, patience=9.0), "in time", 11.0)
    still_inside = replace(served, end="shed", at=12.1)
    assert missed_while_lower_served([missed, served]) == [missed]
    assert missed_while_lower_served([given_up, still_inside]) == [given_up]
    assert missed_while_lower_served([replace(given_up, beside_lower=False), still_inside]) == [], (
        "no request of a lower priority ran at the same time"
    )
    seen = replace(given_up, beside_lower=True)
    assert missed_while_lower_served([seen]) == [seen]
    equal = replace(served, offer=replace(served.offer, priority=5))
    shed, gone = replace(served, end="shed"), replace(served, at=10.9)
    yet_to_come = replace(served, offer=replace(served.offer, at=12.1), at=13.0)
    refused = replace(still_inside, end="refused")
    assert missed_while_lower_served([missed, equal, shed, gone, yet_to_come, refused]) == []
    assert missed_while_lower_served([replace(missed, end="shed"), served]) == []


def test_retry_after_is_right_within_a_factor_of_two_and_wrong_if_missing() -> None:
    stated_and_true = [(1.0, 2.0), (2.0, 1.0), (0.9, 2.0), (2.1, 1.0), (None, 1.0), (GRAIN / 9, GRAIN / 2)]
    followed_refusals = [
        FollowedRefusal(1, stated_wait, wait, is_admitted_again=True) for stated_wait, wait in stated_and_true
    ]
    assert ratio(followed_refusals[-1]) == 1.0
    assert ratio(followed_refusals[4]) is None
    one = Run(1.0, "octet", 1, (0.0, 1.0), (), None, followed_refusals)
    assert within_factor(one) == 3 / 6
    assert within_factor(replace(one, followed_refusals=())) is None


def test_open_admission_admits_as_many_requests_as_slots() -> None:
    crowd = [offer(number, at=0.001 * number, patience=1000.0) for number in range(20)]
    play = LoadSimulation(crowd, lambda clock: OpenAdmission(step_loop(PLANT, clock, 1), slots=12))
    ends = Counter(outcome.end for outcome in play.run())
    assert ends == {"in time": 12, "refused": 8}


@settings(max_examples=20)
@given(answer=st.integers(1, 20), limit=st.integers(20, 40))
def test_answer_ends_at_its_own_length(answer: int, limit: int) -> None:
    asked = replace(offer(patience=1000.0), answer_tokens=answer, max_tokens=limit)
    emitted = 0

    class CountingAdmission(OpenAdmission):
        def events(self) -> list[Event]:
            nonlocal emitted
            events = super().events()
            emitted += sum(len(event.tokens) for event in events if isinstance(event, Emitted))
            return events

    play = LoadSimulation([asked], lambda clock: CountingAdmission(step_loop(PLANT, clock, 1), slots=12))
    assert [each.end for each in play.run()] == ["in time"]
    assert emitted == answer


def test_a_simulation_plays_all_systems_on_every_load_and_seed() -> None:
    found, runs = simulate(replace(small_plan(seconds=5.0, seeds=(1, 2)), lengths=(4, 64)))
    assert found > 1
    assert Counter((each.load, each.system, each.seed) for each in runs) == {
        (load, system, seed): 1 for load in (1.0, 10.0) for system in SYSTEMS for seed in (1, 2)
    }
    for seed in (1, 2):
        histories = {
            each.system: sorted(outcome.offer.number for outcome in each.outcomes)
            for each in runs
            if each.seed == seed and each.load == 10.0
        }
        assert all(history == histories["octet"] for history in histories.values())
