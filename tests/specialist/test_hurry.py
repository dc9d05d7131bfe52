"""A prompt waits where somebody before it who decodes can be in time only without chunks between its steps."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.budget import FixedBudget
from specialist.config import SchedulerConfig
from specialist.engines.sim import CostModel, SimEngine, SimModel
from specialist.hurry import Hurry
from specialist.loop import StepLoop
from specialist.request import Request
from specialist.scheduler import Scheduler
from specialist.sequence import Sequence
from specialist.step import Step
from tests.specialist.builders import BARE, make_sequence

NUM_BLOCKS, BLOCK_SIZE = 100, 4
CHUNK, ROUND, ROUNDS = 0.5, 0.25, 4
AN_HOUR = 3600.0


def decoding(index: int, *, priority: int, deadline: float | None) -> Sequence:
    """It has its prompt behind it and so many rounds before it."""
    seq = make_sequence(index, max_tokens=ROUNDS, priority=priority, deadline=deadline)
    seq.num_computed = seq.num_tokens - 1
    return seq


def hurry() -> Hurry:
    """That knows how long a round takes."""
    made = Hurry(CHUNK)
    made.observe(ROUND)
    return made


@pytest.mark.parametrize(
    ("deadline", "held"),
    [
        (None, False),
        (ROUNDS * ROUND / 2, False),
        (ROUNDS * ROUND, True),
        (ROUNDS * (ROUND + CHUNK), True),
        (AN_HOUR, False),
    ],
    ids=["no deadline", "late whatever is done", "just in time without chunks", "not with chunks", "time to spare"],
)
def test_a_prompt_waits_for_who_can_be_in_time_without_it_alone(deadline: float | None, held: bool) -> None:
    assert hurry().holds(make_sequence(2), [decoding(1, priority=1, deadline=deadline)], 0.0, ROUNDS) is held


def test_a_short_prompt_waits_for_less_than_a_long_one() -> None:
    """It puts few chunks between the steps, however many are left."""
    urgent = [decoding(1, priority=1, deadline=ROUNDS * ROUND + 3 * CHUNK + 2 * CHUNK)]
    held = [hurry().holds(make_sequence(2), urgent, 0.0, chunks) for chunks in (1, 2, 3, 99)]
    assert held == [False, False, True, True]


def test_only_prompts_behind_it_wait_and_only_for_who_decodes() -> None:
    before, behind = make_sequence(1, priority=2), make_sequence(2, priority=0)
    urgent = decoding(3, priority=1, deadline=ROUNDS * ROUND)
    computing = make_sequence(4, priority=1, max_tokens=ROUNDS, deadline=ROUNDS * ROUND)
    assert hurry().holds(behind, [urgent], 0.0, 1)
    assert not hurry().holds(before, [urgent], 0.0, 1)
    assert not hurry().holds(behind, [computing], 0.0, 1)


class HoldsOne(Hurry):
    """Says who waits, and until when."""

    def __init__(self, name: str) -> None:
        super().__init__(CHUNK)
        self.name = name

    def holds(self, prompt: Sequence, running: Iterable[Sequence], now: float, num_chunks: int) -> bool:
        return prompt.request.request_id == self.name


def run(loop: StepLoop) -> Step:
    step = loop.run_once()
    assert step is not None
    return step


def test_a_prompt_that_has_to_wait_in_mid_budget_costs_nobody_the_step_that_is_owed() -> None:
    clock = ManualClock()
    holding = HoldsOne("held")
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    scheduler = Scheduler(pool, SchedulerConfig(BARE), clock, budget=FixedBudget(8), hurry=holding)
    cost = CostModel(*[0.0] * 8)
    loop = StepLoop(scheduler, SimEngine(SimModel(), cost, clock, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE))

    def submit(name: str, stack: int, length: int, priority: int) -> None:
        lane = replace(BARE, adapters=(f"{stack:064x}",))
        scheduler.submit(Request(name, lane, tuple(range(length)), max_tokens=50, priority=priority))

    for stack in range(3):
        submit(f"r{stack}", stack, 2, 1)
    for _ in range(12):
        run(loop)
    submit("first", 3, 4, 2)
    submit("held", 4, 16, 0)

    assert [row.sequence.request.request_id for row in run(loop).rows] == ["first"]
    behind = [run(loop) for _ in range(4)]
    assert {step.mode for step in behind} == {"decode"}
    assert len({step.adapters for step in behind}) == 4, "a stack that can decode had no step behind the chunk"
    run(loop)
    holding.name = ""
    step = run(loop)
    assert [(row.sequence.request.request_id, len(row.tokens)) for row in step.rows] == [("held", 8)], "a chunk's rest"
