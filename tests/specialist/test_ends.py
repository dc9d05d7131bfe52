"""A request can end at any point. It ends exactly once, frees what it held, and does not affect the request that shares
its steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, FaultSource, InjectedFault, SimEngine, SimModel
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import FinishReason, Sequence
from specialist.scheduling.step import Emitted, Event, Finished, FixedBudget, Step, StepOutcome
from tests.specialist.builders import BARE, make_request

MODEL = SimModel()
FREE_OF_CHARGE = CostModel(*[0.0] * 8)
CONFIG = SchedulerConfig(BARE, max_step_tokens=4, watermark=0.0)
NUM_BLOCKS, BLOCK_SIZE = 13, 2
"""There is room for both prompts but not for both answers, so the newer request is preempted at some point."""
NEIGHBOUR = make_request("neighbour", prompt=(1, 2, 3, 4, 5, 6), max_tokens=12, arrival=0.0)
DOOMED = make_request("doomed", prompt=(6, 5, 4, 3, 2, 1, 0, 9), max_tokens=12, arrival=1.0, deadline=60.0)

Moment = Callable[[Sequence], bool]


def waiting(seq: Sequence) -> bool:
    return seq.table is None and seq.times_preempted == 0


def between_two_chunks(seq: Sequence) -> bool:
    return 0 < seq.num_computed < len(seq.request.prompt)


def chunk_in_flight(seq: Sequence) -> bool:
    return seq.num_scheduled > 1


def decoding(seq: Sequence) -> bool:
    return seq.num_generated > 0


def token_in_flight(seq: Sequence) -> bool:
    return seq.num_scheduled == 1


def preempted(seq: Sequence) -> bool:
    return seq.times_preempted > 0


MOMENTS = [waiting, between_two_chunks, chunk_in_flight, decoding, token_in_flight, preempted]


class Replica:
    """A replica with two requests: the neighbour, which has just started, and "doomed", which will end early."""

    def __init__(self, faults: FaultSource = lambda step: None) -> None:
        self.clock = ManualClock()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        self.scheduler = Scheduler(self.pool, CONFIG, self.clock, budget=FixedBudget(4))
        self.engine = SimEngine(
            MODEL, FREE_OF_CHARGE, self.clock, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, faults=faults
        )
        self.loop = StepLoop(self.scheduler, self.engine)
        self.events: list[Event] = []
        self.scheduler.submit(NEIGHBOUR)
        self.loop.run_once()
        self.scheduler.submit(DOOMED)
        self.neighbour, self.doomed = self.scheduler.ledger.live.values()

    def bring_to(self, moment: Moment) -> Step | None:
        """Run steps until `moment` is true of "doomed". Return the step that is then in flight, or None."""
        while not moment(self.doomed):
            step = self.scheduler.assemble_step()
            assert step is not None
            if moment(self.doomed):
                return step
            self.loop.run(step)
        return None

    def land(self, step: Step | None) -> None:
        if step is not None:
            self.loop.run(step)
        self.pool.check()

    def finish(self) -> None:
        """Run all requests to completion. Check that every block is free."""
        while self.loop.run_once() is not None:
            self.pool.check()
        self.events += self.scheduler.take_events()
        assert self.pool.num_free == self.pool.capacity

    def ends(self, request_id: str) -> list[FinishReason]:
        return [event.reason for event in self.events if isinstance(event, Finished) and event.request_id == request_id]

    def answer(self, request_id: str) -> tuple[int, ...]:
        emitted = [
            event.tokens for event in self.events if isinstance(event, Emitted) and event.request_id == request_id
        ]
        return tuple(token for tokens in emitted for token in tokens)


def cancel(replica: Replica) -> FinishReason:
    assert replica.scheduler.end("doomed", "cancelled")
    return "cancelled"


def miss_the_deadline(replica: Replica) -> FinishReason:
    replica.clock.sleep(60.0)
    replica.scheduler.expire()
    return "deadline"


def check_ends(replica: Replica, reason: FinishReason) -> None:
    """Check that "doomed" ended early for this reason and that its neighbour is unaffected."""
    replica.finish()
    assert replica.ends("doomed") == [reason]
    assert replica.answer("doomed") == MODEL.answer(DOOMED)[: replica.doomed.num_generated]
    assert replica.ends("neighbour") == ["length"]
    assert replica.answer("neighbour") == MODEL.answer(NEIGHBOUR)


@pytest.mark.parametrize("end", [cancel, miss_the_deadline])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_request_ends_once_wherever_it_is(moment: Moment, end: Callable[[Replica], FinishReason]) -> None:
    replica = Replica()
    step = replica.bring_to(moment)
    reason = end(replica)
    assert not replica.scheduler.end("doomed", "cancelled")
    replica.land(step)
    assert replica.pool.num_used == len(replica.neighbour.running_table())
    check_ends(replica, reason)


@pytest.mark.parametrize("end", [cancel, miss_the_deadline])
@pytest.mark.parametrize("moment", [chunk_in_flight, token_in_flight])
def test_blocks_that_a_step_writes_to_are_held_until_its_commit(
    moment: Moment, end: Callable[[Replica], FinishReason]
) -> None:
    replica = Replica()
    step = replica.bring_to(moment)
    before = replica.pool.num_used
    end(replica)
    assert replica.pool.num_used == before
    replica.land(step)
    assert replica.pool.num_used < before


def test_a_deadline_expires_by_itself() -> None:
    replica = Replica()
    replica.bring_to(decoding)
    replica.clock.sleep(60.0)
    check_ends(replica, "deadline")


def whenever(moment: Moment, fault: InjectedFault) -> FaultSource:
    """Return a source that injects the fault into every step that contains "doomed" while `moment` is true of it."""

    def source(step: Step) -> InjectedFault | None:
        for i, row in enumerate(step.rows):
            if row.sequence.request.request_id == "doomed" and moment(row.sequence):
                return replace(fault, row=i)
        return None

    return source


@pytest.mark.parametrize("moment", [chunk_in_flight, token_in_flight])
@pytest.mark.parametrize(
    "fault",
    [
        InjectedFault("fail_row"),
        InjectedFault("fail_before", named=True),
        InjectedFault("fail_after", named=True),
        InjectedFault("fail_before"),
        InjectedFault("fail_after"),
    ],
    ids=["lost row", "named before", "named after", "unnamed before", "unnamed after"],
)
def test_an_error_ends_the_request_it_belongs_to(fault: InjectedFault, moment: Moment) -> None:
    check_ends(Replica(whenever(moment, fault)), "error")


@pytest.mark.parametrize("nonsense", [(), (1, 2), (-1,), (2**32,)], ids=["none", "two", "negative", "too large"])
def test_an_invalid_result_for_one_row_ends_that_row(nonsense: tuple[int, ...]) -> None:
    """The engine returns no token, two tokens or an invalid token for a row that must get exactly one."""
    replica = Replica()
    step = replica.bring_to(lambda seq: token_in_flight(seq) and replica.neighbour.num_scheduled > 0)
    assert step is not None
    [(_, outcome)] = replica.engine.run(step)
    assert isinstance(outcome, StepOutcome)
    ours = [
        nonsense if row.sequence is replica.doomed else due for row, due in zip(step.rows, outcome.sampled, strict=True)
    ]
    replica.engine.discard(replica.scheduler.commit(step, StepOutcome(tuple(ours))))
    check_ends(replica, "error")
