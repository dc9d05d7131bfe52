"""A prompt is held back while its chunks could make a decoding request of better rank miss its deadline."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest

from admission.policy import DecodingRequest, PrefillHold, Rank
from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request, Sequence
from specialist.scheduling.step import FixedBudget, Step
from tests.specialist.builders import BARE, make_sequence

NUM_BLOCKS, BLOCK_SIZE = 100, 4
CHUNK, ROUND, ROUNDS = 0.5, 0.25, 4
AN_HOUR = 3600.0


def decoding(index: int, *, priority: int, deadline: float | None) -> DecodingRequest:
    """Return a request whose prompt is computed and that needs `ROUNDS` more decode steps."""
    return make_sequence(index, priority=priority, deadline=deadline).rank, deadline, ROUNDS


def is_held(prompt: Sequence, requests: list[DecodingRequest], num_chunks: int) -> bool:
    """Return whether a prompt with `num_chunks` chunks left is held back because of these decoding requests."""
    return PrefillHold(CHUNK, ROUND).margin(prompt.rank, requests, 0.0, num_chunks) < 0


@pytest.mark.parametrize(
    ("deadline", "held"),
    [
        (None, False),
        (ROUNDS * ROUND / 2, False),
        (ROUNDS * ROUND, True),
        (ROUNDS * (ROUND + CHUNK), True),
        (AN_HOUR, False),
    ],
    ids=["no deadline", "late in any case", "just in time without chunks", "not with chunks", "time to spare"],
)
def test_a_prompt_waits_for_a_request_that_needs_every_round(deadline: float | None, held: bool) -> None:
    assert is_held(make_sequence(2), [decoding(1, priority=1, deadline=deadline)], ROUNDS) is held


def test_a_short_prompt_is_held_less_than_a_long_one() -> None:
    """A short prompt adds few chunks between the decode steps."""
    urgent = [decoding(1, priority=1, deadline=ROUNDS * ROUND + 3 * CHUNK + 2 * CHUNK)]
    held = [is_held(make_sequence(2), urgent, chunks) for chunks in (1, 2, 3, 99)]
    assert held == [False, False, True, True]


def test_nothing_is_held_before_a_round_was_measured() -> None:
    urgent = decoding(1, priority=1, deadline=ROUNDS * ROUND)
    assert PrefillHold(CHUNK).margin(make_sequence(2).rank, [urgent], 0.0, 1) == inf


def test_only_prompts_of_worse_rank_are_held() -> None:
    before, behind = make_sequence(1, priority=2), make_sequence(2, priority=0)
    urgent = decoding(3, priority=1, deadline=ROUNDS * ROUND)
    assert is_held(behind, [urgent], 1)
    assert not is_held(before, [urgent], 1)


def test_only_decoding_requests_hold_a_prompt() -> None:
    clock = ManualClock()
    scheduler = Scheduler(
        BlockPool(NUM_BLOCKS, BLOCK_SIZE), SchedulerConfig(BARE), clock, budget=FixedBudget(4), hold=HeldPrompt("held")
    )
    scheduler.submit(Request("computing", BARE, tuple(range(40)), 10, priority=1, deadline=50.0))
    scheduler.submit(Request("held", BARE, tuple(range(40)), 10))
    assert scheduler.assemble_step() is not None
    hold = scheduler.hold
    assert isinstance(hold, HeldPrompt) and hold.seen == [], "a request that computes its prompt must hold no other"


class HeldPrompt(PrefillHold):
    """Holds back every prompt of priority 0 until a test sets `name` to an empty string, and records which requests
    decode."""

    name: str
    seen: list[DecodingRequest]

    def __init__(self, name: str) -> None:
        super().__init__(CHUNK)
        self.name, self.seen = name, []

    def margin(
        self, prompt: Rank, decoding: Iterable[DecodingRequest], now: float, num_chunks: int, num_rounds: float = 0.0
    ) -> float:
        self.seen += decoding
        return -1.0 if prompt[0] == 0 and self.name else inf


def run(loop: StepLoop) -> Step:
    step = loop.run_once()
    assert step is not None
    return step


def test_a_prompt_held_in_mid_budget_costs_no_owed_step() -> None:
    clock = ManualClock()
    holding = HeldPrompt("held")
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    scheduler = Scheduler(pool, SchedulerConfig(BARE), clock, budget=FixedBudget(8), hold=holding)
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
    assert len({step.adapters for step in behind}) == 4, "a stack that could decode had no step after the chunk"
    run(loop)
    holding.name = ""
    step = run(loop)
    assert [(row.sequence.request.request_id, len(row.tokens)) for row in step.rows] == [("held", 8)], (
        "the rest of a chunk must be used"
    )
