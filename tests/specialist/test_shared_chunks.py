"""Prompts of several adapter stacks share one budget, one stack after another, before the decoding sequences get a
step."""

from dataclasses import replace

import pytest

from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, FixedBudget
from tests.specialist.builders import BARE

PROMPTS, LENGTH = 16, 32
NUM_BLOCKS, BLOCK_SIZE = 400, 16
A_STEP, A_TOKEN = 0.5, 0.25


class RecordingBudget(FixedBudget):
    """A budget that records its observations."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(num_tokens)
        self.seen: list[tuple[int, float]] = []

    def observe(self, num_tokens: int, seconds: float) -> None:
        self.seen.append((num_tokens, seconds))


def first_tokens(num_stacks: int, budget: RecordingBudget) -> list[int]:
    """Run requests that arrive together. Return the numbers of the steps in which they get their first tokens."""
    clock = ManualClock()
    pool = BlockPool(NUM_BLOCKS + 1, BLOCK_SIZE)
    scheduler = Scheduler(pool, SchedulerConfig(BARE), clock, budget=budget)
    cost = CostModel(A_STEP, A_TOKEN, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    engine = SimEngine(SimModel(), cost, clock, num_blocks=NUM_BLOCKS + 1, block_size=BLOCK_SIZE)
    loop = StepLoop(scheduler, engine)
    for i in range(PROMPTS):
        lane = replace(BARE, adapters=(f"{i % num_stacks:064x}",))
        scheduler.submit(Request(f"r{i}", lane, tuple(range(i, i + LENGTH)), max_tokens=40))
    first_at: dict[str, int] = {}
    while (step := loop.run_once()) is not None:
        for event in scheduler.take_events():
            if isinstance(event, Emitted):
                first_at.setdefault(event.request_id, step.number)
    return sorted(first_at.values())


@pytest.mark.parametrize("num_stacks", [1, 4, 16])
def test_a_budget_for_all_of_them_takes_one_step_a_stack(num_stacks: int) -> None:
    assert first_tokens(num_stacks, RecordingBudget(PROMPTS * LENGTH))[-1] == num_stacks


def test_a_budget_for_some_is_kept_and_every_stack_has_a_step_behind_it() -> None:
    """The budget fits two prompts. After each pair of prompts, every stack that can decode gets one step: two steps
    after the first pair, four after the second, and so on."""
    found = first_tokens(16, RecordingBudget(2 * LENGTH))
    behind = [sum(range(2, 2 * pair + 1, 2)) for pair in range(8)]
    assert found == [2 * pair + steps + one for pair, steps in enumerate(behind) for one in (1, 2)]


def test_the_budget_observes_what_all_of_them_took_together() -> None:
    budget = RecordingBudget(4 * LENGTH)
    first_tokens(16, budget)
    assert budget.seen == [(4 * LENGTH, 4 * (A_STEP + LENGTH * A_TOKEN))] * 4  # Powers of two are exact.
