"""The scheduler makes the same decisions as the naive scheduler, whatever is requested."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.sequence import FinishReason, PromptTooLarge, Request, Sequence
from specialist.scheduling.step import (
    Emitted,
    Event,
    Finished,
    FixedBudget,
    Outcome,
    Preempted,
    RowFault,
    Step,
    StepFailure,
    StepOutcome,
)
from tests.specialist.builders import BARE, LANES, make_request
from tests.specialist.naive_scheduler import NaiveRow, NaiveScheduler

Interruption = Literal[
    "none", "time passes", "a row is cancelled", "deadlines pass", "a newcomer", "a late commit", "a second assembly"
]
Fate = Literal["sound", "fails", "fails and names a culprit", "loses a row"]

MODEL = SimModel(vocab_size=3)
FREE_OF_CHARGE = CostModel(*[0.0] * 8)
SHARED_TEXT = (0, 1, 2, 0, 1, 2)
MANY_STEPS = 2_000

configs = st.builds(
    SchedulerConfig,
    lane=st.just(BARE),
    max_running=st.sampled_from([1, 2, 3, 4, 4, 5, 5]),
    max_step_tokens=st.sampled_from([1, 2, 3, 5, 12]),
    watermark=st.sampled_from([0.0, 0.05, 0.2, 0.5]),
    age_bound=st.integers(1, 3),
)
prompts = st.builds(
    lambda num_shared, own: (*SHARED_TEXT[:num_shared], *own),
    st.integers(0, len(SHARED_TEXT)),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
)
requests = st.builds(
    make_request,
    lane=st.sampled_from([BARE, BARE, *LANES]),
    prompt=prompts,
    max_tokens=st.integers(1, 12),
    priority=st.integers(0, 3),
    arrival=st.integers(0, 3),
    deadline=st.sampled_from([None] * 4 + [0, 2, 5, 200, 200]),
    stop_ids=st.sampled_from([frozenset(), frozenset(), frozenset({2})]),
    seed=st.integers(0, 1),
    session_key=st.sampled_from([b"", b"one", b"two"]),
)
interruptions = st.sampled_from(get_args(Interruption))
fates = st.sampled_from(["sound", "sound", "fails", *get_args(Fate)])


def rows_of(step: Step | None) -> list[NaiveRow]:
    return [
        NaiveRow(row.sequence.request.request_id, row.start, len(row.tokens), row.num_drafts, row.num_samples)
        for row in (step.rows if step else ())
    ]


def ids(seqs: Iterable[Sequence]) -> list[str]:
    return [seq.request.request_id for seq in seqs]


def without_detail(event: Event) -> Event:
    return event._replace(detail="") if isinstance(event, Finished) else event


def has_live_requests(laws: "SchedulerLaws") -> bool:
    return bool(laws.scheduler.ledger.live)


def crowded(laws: "SchedulerLaws") -> bool:
    return len(laws.scheduler.ledger.live) > 6


def lonely(laws: "SchedulerLaws") -> bool:
    return not crowded(laws)


class SchedulerLaws(RuleBasedStateMachine):
    """Runs the scheduler and the naive scheduler on the same events, each with its own pool."""

    def __init__(self) -> None:
        super().__init__()
        self._open_replica(SchedulerConfig(BARE), num_blocks=6, block_size=1, budget=1)

    @initialize(
        config=configs,
        num_blocks=st.integers(6, 24),
        block_size=st.integers(1, 4),
        budget=st.integers(1, 9),
        requests=st.lists(requests, min_size=5, max_size=8),
    )
    def open_replica(
        self, config: SchedulerConfig, num_blocks: int, block_size: int, budget: int, requests: list[Request]
    ) -> None:
        self._open_replica(config, num_blocks, block_size, budget)
        self.submit(requests)

    @precondition(lonely)
    @rule(requests=st.lists(requests, min_size=1, max_size=3))
    def submit(self, requests: list[Request]) -> None:
        for request in requests:
            self._submit(request)

    @precondition(lambda self: has_live_requests(self) and lonely(self))
    @rule(request=requests, which=st.integers(0, 9))
    def follow_up(self, request: Request, which: int) -> None:
        """Submit a more urgent request that continues the text of a running one."""
        seq = self._one_alive(which)
        prompt = tuple(seq.chain.view()) + request.prompt[-2:]
        priority = seq.request.priority + 1
        key = request.session_key and seq.request.session_key
        self._submit(replace(request, lane=seq.request.lane, prompt=prompt, priority=priority, session_key=key))

    @precondition(has_live_requests)
    @rule(interruption=interruptions, newcomer=requests, fate=fates, which=st.integers(0, 4))
    def step(self, interruption: Interruption, newcomer: Request, fate: Fate, which: int) -> None:
        step = self._launch()
        if step is not None:
            self.keeps_its_laws()
            self._interrupt(step, interruption, newcomer, which)
            self.keeps_its_laws()
            self._land(step, self._outcome(step, fate, which % len(step.rows)))

    @precondition(has_live_requests)
    @rule(most=st.integers(1, 5))
    def take_steps(self, most: int) -> None:
        while most and (step := self._launch()) is not None:
            self._land(step, self._outcome(step, "sound", 0))
            most -= 1

    @precondition(crowded)
    @rule(which=st.integers(0, 9), reason=st.sampled_from(["cancelled", "error"]))
    def end(self, which: int, reason: FinishReason) -> None:
        self._end(self._one_alive(which).request.request_id, reason)

    def teardown(self) -> None:
        """Check that, without further events, all requests end and return their blocks."""
        broken_in_mid_step = self.scheduler.in_flight is not None
        if not broken_in_mid_step:
            self.take_steps(most=MANY_STEPS)
            self.keeps_its_laws()
            assert self.finished == set(self.requests)
            assert self.pool.num_free == self.pool.capacity

    @invariant()
    def keeps_its_laws(self) -> None:
        self._decides_as_the_naive_one()
        self._every_request_is_live_or_finished()
        self._places_agree()
        self._pools_agree()
        self._a_step_has_one_adapter_stack()
        self._three_integers_are_ordered()

    def _decides_as_the_naive_one(self) -> None:
        """Check that every decision equals the naive scheduler's, that every answer equals the model's, and that no
        request ends twice."""
        expected, self.naive.events = self.naive.events, []
        events = [without_detail(event) for event in self.scheduler.take_events()]
        assert events == expected
        for event in events:
            if isinstance(event, Emitted):
                self.answers[event.request_id] += event.tokens
            if isinstance(event, Finished):
                assert event.request_id not in self.finished
                self.finished.add(event.request_id)
                self._check_answer(event)

    def _every_request_is_live_or_finished(self) -> None:
        live = self.scheduler.ledger.live.keys()
        assert live.isdisjoint(self.finished)
        assert live | self.finished == self.requests.keys()

    def _pools_agree(self) -> None:
        self.pool.check()
        assert self.pool.num_used == self.naive.pool.num_used

    def _places_agree(self) -> None:
        assert ids(self.scheduler.waiting) == [seq.name for seq in self.naive.waiting]
        assert set(ids(self.scheduler.running)) == {seq.name for seq in self.naive.running}
        assert all(seq.table is not None for seq in self.scheduler.running)
        assert all(seq.table is None for seq in self.scheduler.waiting)

    def _a_step_has_one_adapter_stack(self) -> None:
        step = self.scheduler.in_flight
        if step is not None:
            assert {row.sequence.request.lane.adapters for row in step.rows} == {step.adapters}

    def _three_integers_are_ordered(self) -> None:
        step = self.scheduler.in_flight
        num_drafts = {row.sequence: row.num_drafts for row in step.rows} if step else {}
        computed = {seq.name: seq.num_computed for seq in self.naive.live}
        for name, seq in self.scheduler.ledger.live.items():
            assert seq.num_computed == computed[name] >= 0
            assert seq.num_computed + seq.num_scheduled <= seq.num_tokens + num_drafts.get(seq, 0)
            assert (seq.num_scheduled > 0) == (seq in num_drafts)

    def _open_replica(self, config: SchedulerConfig, num_blocks: int, block_size: int, budget: int) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, config, self.clock, budget=FixedBudget(budget))
        self.naive = NaiveScheduler(BlockPool(num_blocks, block_size), config, budget)
        self.engine = SimEngine(MODEL, FREE_OF_CHARGE, self.clock, num_blocks=num_blocks, block_size=block_size)
        self.requests: dict[str, Request] = {}
        self.answers: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
        self.finished: set[str] = set()
        self.committed: list[Step] = []

    def _submit(self, request: Request) -> None:
        """Submit the request. Its deadline is relative to now."""
        deadline = None if request.deadline is None else self.clock.now() + request.deadline
        request = replace(request, request_id=f"r{len(self.requests)}", deadline=deadline)
        self.requests[request.request_id] = request
        if self.pool.blocks_for(len(request.prompt) + 1) <= self.pool.capacity:
            self.scheduler.submit(request)
            self.naive.submit(request)
        else:
            with pytest.raises(PromptTooLarge):
                self.scheduler.submit(request)
            self.finished.add(request.request_id)

    def _one_alive(self, which: int) -> Sequence:
        live = list(self.scheduler.ledger.live.values())
        return live[which % len(live)]

    def _launch(self) -> Step | None:
        num_events = len(self.naive.events)
        expected = self.naive.assemble(self.clock.now())
        step = self.scheduler.assemble_step()
        assert rows_of(step) == expected
        assert (step is None) == (not self.scheduler.ledger.live)
        if step is not None:
            preempted = [event for event in self.naive.events[num_events:] if isinstance(event, Preempted)]
            assert step.num_preempted == len(preempted)
            assert step.mode == ("prefill" if any(row.num_tokens > 1 for row in expected) else "decode")
        return step

    def _interrupt(self, step: Step, interruption: Interruption, newcomer: Request, which: int) -> None:
        """Cause an event that may occur while a step is in flight."""
        if interruption == "a row is cancelled":
            self._end(rows_of(step)[which % len(step.rows)].request_id, "cancelled")
        if interruption in ("time passes", "deadlines pass"):
            self.clock.sleep(which)
        if interruption == "deadlines pass":
            self.scheduler.expire()
            self.naive.expire(self.clock.now())
        if interruption == "a newcomer":
            self._submit(newcomer)
        if interruption == "a late commit" and self.committed:
            self._commit_again(self.committed[-1])
        if interruption == "a second assembly":
            with pytest.raises(RuntimeError, match="in flight"):
                self.scheduler.assemble_step()

    def _land(self, step: Step, outcome: Outcome) -> None:
        self.engine.discard(self.scheduler.commit(step, outcome))
        self.naive.commit(outcome)
        self.committed.append(step)
        self._commit_again(step)

    def _commit_again(self, step: Step) -> None:
        before = self.scheduler.num_stale_commits
        assert self.scheduler.commit(step, StepFailure("late")) == []
        assert self.scheduler.num_stale_commits == before + 1

    def _end(self, request_id: str, reason: FinishReason) -> None:
        assert self.naive.end(request_id, reason)
        assert self.scheduler.end(request_id, reason)
        assert not self.scheduler.end(request_id, reason)

    def _outcome(self, step: Step, fate: Fate, which: int) -> Outcome:
        """Return the engine's result for the step, changed as `fate` says."""
        [(_, outcome)] = self.engine.run(step)
        assert isinstance(outcome, StepOutcome)
        if fate == "loses a row":
            return StepOutcome((*outcome.sampled[:which], RowFault("lost"), *outcome.sampled[which + 1 :]))
        if fate == "fails":
            return StepFailure("out of memory")
        if fate == "fails and names a culprit":
            return StepFailure("not a number", culprit=rows_of(step)[which].request_id)
        return outcome

    def _check_answer(self, event: Finished) -> None:
        request = self.requests[event.request_id]
        whole = MODEL.answer(request, limit=self.pool.num_slots - len(request.prompt))
        given = self.answers[event.request_id]
        assert given == (whole if event.reason in ("stop", "length") else whole[: len(given)])


TestSchedulerLaws = SchedulerLaws.TestCase
TestSchedulerLaws.settings = settings(max_examples=max(60, settings().max_examples), stateful_step_count=50)
