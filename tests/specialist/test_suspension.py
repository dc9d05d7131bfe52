"""A suspended sequence leaves its slot and the queue. Once resumed, it continues without losing a token."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admission.forecast.bookings import Admit
from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel, SimState
from specialist.scheduling.ledger import Hybrid
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished, FixedBudget, Preempted
from tests.specialist.builders import BARE, LANES
from tests.specialist.test_replica_core import ReplicaRun, load, new_front

NUM_BLOCKS, BLOCK = 64, 4


class Replica:
    """A scheduler and its engine, with recurrent state if `hybrid` is true."""

    def __init__(self, *, hybrid: bool = False) -> None:
        self.clock = ManualClock()
        pool = BlockPool(NUM_BLOCKS + 1, BLOCK)
        self.engine = SimEngine(SimModel(97), CostModel(), self.clock, num_blocks=NUM_BLOCKS + 1, block_size=BLOCK)
        self.states = Hybrid(pool, lambda: SimState(self.engine.memory), 1 << 20) if hybrid else None
        config = SchedulerConfig(BARE, max_running=2)
        self.scheduler = Scheduler(pool, config, self.clock, budget=FixedBudget(8), states=self.states)
        self.loop = StepLoop(self.scheduler, self.engine)
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, str] = {}
        self.left: list[Preempted] = []

    def submit(self, *names: str, max_tokens: int = 12) -> None:
        for name in names:
            prompt = tuple((len(name) * i) % 97 for i in range(9))
            self.scheduler.submit(Request(name, BARE, prompt, max_tokens, arrival=self.clock.now()))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.loop.run_once()
            self.add_event()

    def add_event(self) -> None:
        for event in self.scheduler.take_events():
            if isinstance(event, Emitted):
                self.tokens.setdefault(event.request_id, []).extend(event.tokens)
            elif isinstance(event, Finished):
                self.ends[event.request_id] = event.reason
            elif isinstance(event, Preempted):
                self.left.append(event)

    def names(self) -> list[str]:
        return [seq.request.request_id for seq in self.scheduler.running]

    def check_empty(self) -> None:
        scheduler = self.scheduler
        scheduler.pool.check()
        assert scheduler.pool.num_used == 0 and not scheduler.ledger.live
        assert not scheduler.ledger.suspended and not len(scheduler.waiting) and not len(scheduler.running)


def alone(name: str, *, hybrid: bool) -> list[int]:
    replica = Replica(hybrid=hybrid)
    replica.submit(name)
    replica.step(40)
    return replica.tokens[name]


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2, 3, 6, 10])
def test_a_suspended_sequence_goes_on_where_it_was(at: int, hybrid: bool) -> None:
    """The sequence is suspended while it waits, during its prompt, or while it decodes."""
    replica = Replica(hybrid=hybrid)
    replica.submit("a")
    replica.submit("other", max_tokens=30)
    replica.step(at)
    said, ran = list(replica.tokens.get("a", [])), "a" in replica.names()
    assert replica.scheduler.suspend("a", "boss")
    assert not replica.scheduler.suspend("a", "another"), "the sequence is already suspended"
    replica.step(4)
    assert replica.names() == ["other"] and replica.tokens.get("a", []) == said
    assert replica.left == ([Preempted("a", "deadline", "boss")] if ran else [])
    assert replica.scheduler.ledger.live["a"].times_preempted == ran
    if isinstance(replica.states, Hybrid) and said:
        assert replica.scheduler.ledger.live["a"].saved is not None
    assert replica.scheduler.resume("a")
    assert not replica.scheduler.resume("a")
    replica.step(60)
    assert replica.tokens["a"] == alone("a", hybrid=hybrid)
    replica.check_empty()


def test_a_sequence_resumed_before_the_next_step_keeps_its_slot() -> None:
    replica = Replica()
    replica.submit("a")
    replica.step(3)
    replica.scheduler.suspend("a", "boss")
    replica.scheduler.resume("a")
    assert not len(replica.scheduler.waiting), "the sequence still has its slot"
    replica.step(40)
    assert not replica.left and replica.ends == {"a": "length"}
    replica.check_empty()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("between", [0, 1])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_sequence_that_ends_suspended_leaves_nothing_behind(at: int, between: int, hybrid: bool) -> None:
    replica = Replica(hybrid=hybrid)
    replica.submit("a")
    replica.step(at)
    replica.scheduler.suspend("a", "boss")
    replica.step(between)
    assert replica.scheduler.end("a", "cancelled")
    assert not replica.scheduler.resume("a") and not replica.scheduler.suspend("a", "boss")
    replica.add_event()
    assert replica.ends == {"a": "cancelled"}
    replica.check_empty()
    if isinstance(replica.states, Hybrid):
        kept = sum(snapshot.nbytes for snapshot in replica.states.snapshots.values())
        assert replica.states.num_snapshot_bytes == kept, "the snapshot must be gone"


def test_a_suspended_request_ends_at_its_deadline() -> None:
    replica = Replica()
    replica.scheduler.submit(Request("a", BARE, (1, 2, 3), 9, deadline=1.0))
    replica.scheduler.suspend("a", "boss")
    replica.clock.sleep(2.0)
    replica.step()
    assert replica.ends == {"a": "deadline"}
    replica.check_empty()


def test_a_sequence_suspended_in_flight_keeps_what_it_computes() -> None:
    replica = Replica()
    replica.submit("a")
    replica.step(4)
    step = replica.scheduler.assemble_step()
    assert step is not None
    replica.scheduler.suspend("a", "boss")
    replica.loop.run(step)
    replica.add_event()
    said = len(replica.tokens["a"])
    assert replica.scheduler.assemble_step() is None and not replica.names()
    assert said > 0 and replica.scheduler.pool.num_used == 0
    replica.scheduler.resume("a")
    replica.step(40)
    assert len(replica.tokens["a"]) == 12
    replica.check_empty()


@given(seed=st.integers(0, 2**16), rate=st.floats(5, 40), max_running=st.integers(1, 6))
@settings(max_examples=12, deadline=None)
def test_no_request_waits_forever_whichever_is_cancelled(seed: int, rate: float, max_running: int) -> None:
    """Every request ends, although some are urgent, others have no deadline, and callers cancel at any time."""
    rng = Random(seed)
    requests = [_hurried(request, rng) for request in load(rate, 2.0, seed)]
    story, live = ReplicaRun(new_front(max_running, 128)), dict[str, Request]()
    front = story.front
    for request in requests:
        while front.clock.now() < request.arrival:
            if front.step() is None:
                front.clock.sleep(request.arrival - front.clock.now())
            story.add_event()
        story.requests[request.request_id] = request
        story.verdicts[request.request_id] = verdict = front.submit(request)
        if isinstance(verdict, Admit):
            live[request.request_id] = request
        if live and rng.random() < 0.3:
            front.end(rng.choice(list(live)), "cancelled")
        story.add_event()
        story.check_books()
        live = {key: each for key, each in live.items() if key not in story.ends}
    for _ in range(20_000):
        if front.step() is None:
            break
    story.add_event()
    story.check_whole()
    patient = {key: reason for key, (reason, _) in story.ends.items() if story.requests[key].deadline is None}
    assert set(patient.values()) <= {"length", "cancelled"}, "a request without a deadline must not be shed"


def _hurried(request: Request, rng: Random) -> Request:
    if request.priority < 9:
        deadline = rng.choice([None, request.deadline])
    else:
        deadline = request.arrival + rng.uniform(0.001, 2.0)
    return replace(request, lane=rng.choice(LANES), deadline=deadline)
