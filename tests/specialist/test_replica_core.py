"""An overloaded replica in simulated time."""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast.bookings import AdmissionDecision, Admit, Refuse
from admission.forecast.forecast import Forecast
from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.loop import PrefixHits, ReplicaCore, peek_prefix_hits, prices_from_cost_model
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished, Preempted, TimedBudget
from tests.specialist.builders import BARE, LANES

_ANSWERED = ("stop", "length")
COST = CostModel()
BLOCK = 16


def new_front(
    max_running: int = 8, num_blocks: int = 512, max_waiting: int = 256, *, known: bool = True
) -> ReplicaCore:
    clock = ManualClock()
    config = SchedulerConfig(BARE, max_running=max_running, max_step_tokens=512)
    budget = TimedBudget(0.1, first_guess=32, most=512)
    scheduler = Scheduler(BlockPool(num_blocks + 1, BLOCK), config, clock, budget=budget)
    engine = SimEngine(SimModel(97), COST, clock, num_blocks=num_blocks + 1, block_size=BLOCK)
    return ReplicaCore(
        scheduler, engine, max_waiting=max_waiting, prices=prices_from_cost_model(COST) if known else None
    )


def load(rate: float, seconds: float, seed: int, *, exact: float = 1.0) -> list[Request]:
    """Return many short requests and a few long ones, with three priorities and with near and far deadlines."""
    rng, now, requests = Random(seed), 0.0, list[Request]()
    while now < seconds:
        now += rng.expovariate(rate)
        ends_early = rng.random() >= exact
        prompt = tuple(rng.randrange(97) for _ in range(min(600, int(rng.lognormvariate(3.8, 0.9)) + 2)))
        requests.append(
            Request(
                f"r{len(requests)}",
                BARE,
                prompt,
                max_tokens=200 if ends_early else min(200, int(rng.lognormvariate(3.0, 0.8)) + 1),
                priority=rng.choices([0, 5, 9], [0.5, 0.3, 0.2])[0],
                arrival=now,
                deadline=now + rng.choice([2.0, 5.0, 10.0]),
                stop_ids=frozenset({1, 2, 3}) if ends_early else frozenset(),
                seed=len(requests),
            )
        )
    return requests


@dataclass
class ReplicaRun:
    front: ReplicaCore
    requests: dict[str, Request] = field(default_factory=dict)
    verdicts: dict[str, AdmissionDecision] = field(default_factory=dict)
    ends: dict[str, tuple[str, float]] = field(default_factory=dict)
    tokens: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """How often requests left their slots, by cause."""

    def run(self, requests: list[Request]) -> "ReplicaRun":
        clock, coming = self.front.clock, iter(requests)
        following = next(coming, None)
        while True:
            while following is not None and following.arrival <= clock.now():
                self.requests[following.request_id] = following
                self.verdicts[following.request_id] = self.front.submit(following)
                self.check_books()
                following = next(coming, None)
            busy = self.front.step() is not None
            self.add_event()
            self.check_books()
            if not busy and following is None:
                return self
            if not busy and following is not None:
                clock.sleep(max(0.0, following.arrival - clock.now()))

    def add_event(self) -> None:
        for event in self.front.take_events():
            if isinstance(event, Emitted):
                self.tokens[event.request_id] += len(event.tokens)
            elif isinstance(event, Preempted):
                self.causes[event.cause] += 1
            elif isinstance(event, Finished):
                assert event.request_id not in self.ends, "a request ended twice"
                self.ends[event.request_id] = (event.reason, self.front.clock.now())

    def check_books(self) -> None:
        """Check that the controller's bookings agree with the scheduler's requests and their states."""
        scheduler, books = self.front.scheduler, self.front.controller.bookings
        aside = {entry.booking.key for entry in books.suspended}
        assert aside == {seq.request.request_id for seq in scheduler.ledger.suspended}
        assert {entry.booking.key for entry in books.active} == set(scheduler.ledger.live) - aside
        running = {seq.request.request_id for seq in scheduler.running if seq.suspended_for is None}
        assert {entry.booking.key for entry in books.running} == running
        assert [entry.booking.key for entry in books.line] == [seq.request.request_id for seq in scheduler.waiting]
        for seq in scheduler.running:
            entry = books.get(seq.request.request_id)
            assert entry is not None and entry.generated == seq.num_generated
            assert entry.prompt_left == seq.remaining or (entry.prompt_left, seq.remaining) == (0, 1)

    def late(self) -> list[str]:
        return [key for key, (reason, at) in self.ends.items() if self._is_late(key, reason, at)]

    def _is_late(self, key: str, reason: str, at: float) -> bool:
        deadline = self.requests[key].deadline
        return reason == "deadline" or (reason in _ANSWERED and deadline is not None and at > deadline)

    def tokens_in_time(self) -> int:
        late = set(self.late())
        answered = [key for key, (reason, _) in self.ends.items() if reason in _ANSWERED]
        return sum(self.tokens[key] for key in answered if key not in late)

    def check_whole(self) -> None:
        admitted = {key for key, verdict in self.verdicts.items() if isinstance(verdict, Admit)}
        assert set(self.ends) == admitted, "every admitted request must end, and no other"
        pool = self.front.scheduler.pool
        pool.check()
        assert pool.num_free == pool.capacity and not self.front.controller.bookings.num_live


CAPACITY = 4.0
"""Requests a second, about as many as the replica can serve."""


@pytest.mark.parametrize("seed", [1, 2])
def test_at_ten_times_its_capacity_no_admitted_request_is_late(seed: int) -> None:
    story = ReplicaRun(new_front()).run(load(10 * CAPACITY, 20, seed))
    story.check_whole()
    assert story.late() == []
    refused = [verdict for verdict in story.verdicts.values() if isinstance(verdict, Refuse)]
    assert len(refused) > len(story.verdicts) / 2
    shed = [key for key, (reason, _) in story.ends.items() if reason == "shed"]
    assert all(story.requests[key].priority < 9 for key in shed), (
        "requests of the highest priority must not be displaced"
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_request_without_a_deadline_is_suspended_and_still_answered(seed: int) -> None:
    """Requests of the lowest priority have no deadline here. They make no other request late, and every admitted one is
    answered in full."""
    requests = [
        replace(request, deadline=None) if request.priority == 0 else request
        for request in load(3 * CAPACITY, 20, seed)
    ]
    story = ReplicaRun(new_front()).run(requests)
    story.check_whole()
    assert story.late() == []
    patient = [key for key, request in story.requests.items() if request.priority == 0 and key in story.ends]
    assert {story.ends[key][0] for key in patient} == {"length"}
    assert all(story.tokens[key] == story.requests[key].max_tokens for key in patient)
    assert story.causes["deadline"] > 3


def test_without_the_check_of_others_a_request_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the control experiment: admitted requests are on time only because a request that would delay another is
    refused."""
    monkeypatch.setattr(Forecast, "_delayed", lambda *_: [])
    assert ReplicaRun(new_front()).run(load(10 * CAPACITY, 20, 1)).late()


def test_overload_does_not_cost_what_is_done_in_time() -> None:
    done = {
        rate: ReplicaRun(new_front()).run(load(rate * CAPACITY, 20, 3)).tokens_in_time() for rate in (0.5, 1, 2, 10)
    }
    assert done[10] >= 0.8 * max(done.values()), done


def test_a_replica_without_measurements_learns_its_costs() -> None:
    story = ReplicaRun(new_front(known=False)).run(load(10 * CAPACITY, 20, 4))
    story.check_whole()
    late = [key for key in story.late() if story.requests[key].arrival > 3]
    assert late == [], "the first seconds are for measuring prices"
    error = story.front.controller.errors()
    assert error is not None and error.step_p90 < 0.25


def test_answers_that_end_early_are_not_planned_to_their_limits() -> None:
    story = ReplicaRun(new_front()).run(load(2 * CAPACITY, 30, 5, exact=0.0))
    story.check_whole()
    answered = [key for key, (reason, _) in story.ends.items() if reason == "stop"]
    assert len(answered) > 40, "with 200 tokens each, at most a dozen would fit"
    assert len(story.late()) <= 0.1 * len(answered)


def test_the_same_load_gives_the_same_history() -> None:
    one, other = (ReplicaRun(new_front()).run(load(5 * CAPACITY, 8, 6, exact=0.5)) for _ in range(2))
    assert one.verdicts == other.verdicts and one.ends == other.ends


@given(
    seed=st.integers(0, 2**16),
    max_running=st.integers(1, 6),
    num_blocks=st.sampled_from([48, 64, 512]),
    max_waiting=st.integers(1, 12),
    rate=st.floats(1, 60),
)
@settings(max_examples=15, deadline=None)
def test_bookings_follow_the_scheduler(
    seed: int, max_running: int, num_blocks: int, max_waiting: int, rate: float
) -> None:
    rng = Random(seed)
    requests = [
        replace(request, lane=rng.choice(LANES), deadline=rng.choice([None, request.deadline]))
        for request in load(rate, 2.0, seed, exact=0.5)
    ]
    ReplicaRun(new_front(max_running, num_blocks, max_waiting)).run(requests).check_whole()


@pytest.mark.parametrize(("max_running", "num_blocks"), [(8, 512), (3, 512), (8, 96)])
def test_a_forecast_of_known_work_comes_true(max_running: int, num_blocks: int) -> None:
    """All requests arrive together. Half of the forecasts err by less than 5 %, nine in ten by less than 25 %."""
    front = new_front(max_running, num_blocks)
    requests = [replace(request, arrival=0.0, deadline=None) for request in load(4, 8, 7)]
    for request in requests:
        front.submit(request)
    for _ in range(20):
        front.step()
    now = front.clock.now()
    trial = front.controller.forecast(now)
    assert trial is not None
    timeline = trial.simulate()
    forecast = {entry.booking.key: timeline[entry].finish_at for entry in front.controller.bookings.active}
    front.take_events()
    took: dict[str, float] = {}
    while front.step() is not None:
        for event in front.take_events():
            if isinstance(event, Finished):
                took[event.request_id] = front.clock.now() - now
    assert took.keys() == forecast.keys()
    wrong = sorted(abs(forecast[key] - took[key]) / took[key] for key in took)
    assert wrong[len(wrong) // 2] < 0.05 and wrong[int(len(wrong) * 0.9)] < 0.25, wrong


def test_a_shadow_runs_on_an_idle_replica_and_leaves_when_its_slot_is_needed() -> None:
    front = new_front(max_running=2)
    assert isinstance(front.submit(Request("shadow", BARE, (1, 2, 3), 50), shadow=True), Admit)
    for _ in range(3):
        front.step()
    assert front.controller.bookings.num_shadows == 1
    for name in ("a", "b"):
        assert isinstance(front.submit(Request(name, BARE, (1, 2, 3), 50, arrival=front.clock.now())), Admit)
    assert isinstance(front.submit(Request("another", BARE, (1, 2, 3), 5), shadow=True), Refuse)
    while front.step() is not None:
        pass
    ends = {event.request_id: event.reason for event in front.take_events() if isinstance(event, Finished)}
    assert ends == {"shadow": "shed", "a": "length", "b": "length"}


def test_a_cached_block_is_shared_only_while_it_is_held() -> None:
    front = new_front()
    prompt = tuple(range(70))
    front.submit(Request("a", BARE, prompt, 30))
    for _ in range(3):
        front.step()
    assert peek_prefix_hits(front.scheduler, Request("b", BARE, prompt, 5)) == PrefixHits(64, 64, "a")
    while front.step() is not None:
        pass
    assert peek_prefix_hits(front.scheduler, Request("b", BARE, prompt, 5)) == PrefixHits(64, 0)
    assert peek_prefix_hits(front.scheduler, Request("c", BARE, prompt[::-1], 5)) == PrefixHits(0, 0)


def test_a_holder_is_found_although_its_table_is_released_meanwhile() -> None:
    """The engine thread releases tables while another thread looks for the holder of a block."""

    class SequenceLosingTable:
        """A sequence whose table is gone when the table is read a second time."""

        def __init__(self, sequence: Any) -> None:
            self.request = sequence.request
            self._tables = iter([sequence.table])

        @property
        def table(self) -> Any:
            return next(self._tables, None)

    front = new_front()
    prompt = tuple(range(70))
    front.submit(Request("a", BARE, prompt, 30))
    for _ in range(3):
        front.step()
    front.scheduler.running._members = {cast(Any, SequenceLosingTable(each)): None for each in front.scheduler.running}
    assert peek_prefix_hits(front.scheduler, Request("b", BARE, prompt, 5)) == PrefixHits(64, 64, "a")


def test_after_a_slow_period_the_replica_is_healthy_again() -> None:
    front = new_front()

    def lone(seconds: float | None) -> AdmissionDecision:
        now = front.clock.now()
        deadline = None if seconds is None else now + seconds
        verdict = front.submit(Request(f"r{now}", BARE, tuple(range(90)), 30, arrival=now, deadline=deadline))
        while front.step() is not None:
            pass
        return verdict

    assert isinstance(lone(2.0), Admit)
    engine = front._loop.engine
    assert isinstance(engine, SimEngine)
    engine.cost = CostModel(*(8 * getattr(COST, name) for name in COST.__slots__))
    for _ in range(30):
        lone(None)
    engine.cost = COST
    assert isinstance(lone(2.0), Refuse)
    front.clock.sleep(6.0)
    for _ in range(10):
        assert isinstance(lone(2.0), Admit)
        front.clock.sleep(6.0)
