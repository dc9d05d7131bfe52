"""A budget limits the prompt tokens of a step. A timed budget follows the measured step times."""

from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel, SimEngine, SimModel
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.step import FixedBudget, TimedBudget
from tests.specialist.builders import BARE, make_request

steps = st.tuples(st.integers(1, 4096), st.floats(0.0, 100.0))


@dataclass(frozen=True)
class StepCost:
    """A machine whose steps have a fixed cost and a cost per token."""

    step: float
    token: float

    def follow(self, budget: TimedBudget, times: int) -> None:
        for _ in range(times):
            budget.observe(budget.tokens(), self.step + self.token * budget.tokens())

    def fitting(self, seconds: float) -> float:
        return (seconds - self.step) / self.token


machines = st.builds(StepCost, step=st.floats(0.0, 0.04), token=st.floats(1e-5, 1e-1))


def test_a_fixed_budget_learns_nothing() -> None:
    budget = FixedBudget(7)
    budget.observe(1000, 1e-9)
    assert budget.tokens() == 7


@given(machines, machines)
def test_a_timed_budget_finds_what_fits(before: StepCost, machine: StepCost) -> None:
    """At constant speed, the budget settles at the number of tokens that fit into the step time, whatever was measured
    before."""
    budget = TimedBudget(0.05, first_guess=1, most=1000)
    before.follow(budget, times=20)
    machine.follow(budget, times=200)
    assert budget.tokens() == pytest.approx(min(1000, max(1, machine.fitting(0.05))), rel=0.05, abs=1)


@given(machines, st.floats(0.051, 1e9))
def test_one_stalled_step_at_most_halves_a_timed_budget(machine: StepCost, stall: float) -> None:
    budget = TimedBudget(0.05, first_guess=1, most=1000)
    machine.follow(budget, times=200)
    before = budget.tokens()
    budget.observe(before, stall)
    assert before // 2 <= budget.tokens() <= before


def test_a_short_prompt_in_time_does_not_shrink_the_budget() -> None:
    budget = TimedBudget(0.05, first_guess=64, most=1000)
    budget.observe(1, 0.04)
    assert budget.tokens() == 64
    budget.observe(1, 0.1)
    assert budget.tokens() == 32


def test_a_late_large_step_counts_by_its_share_and_never_in_favour_of_more() -> None:
    """While no request decodes, a step may exceed the budget. If it is late, it can shrink the budget but never raise
    it."""
    budget = TimedBudget(0.05, first_guess=64, most=1000)
    budget.observe(2048, 2048 * 0.0005)
    assert budget.tokens() == 64
    budget.observe(2048, 2048 * 0.001)
    assert budget.tokens() == 50


def test_a_large_step_in_time_shows_that_as_much_fits() -> None:
    budget = TimedBudget(0.05, first_guess=64, most=1000)
    budget.observe(100, 0.05)
    assert budget.tokens() == 100
    budget.observe(900, 0.04)
    assert budget.tokens() == 200, "at most twice as much at once"


def test_a_step_that_took_no_time_at_all_doubles_the_budget() -> None:
    budget = TimedBudget(0.05, first_guess=3, most=100)
    budget.observe(3, 0.0)
    assert budget.tokens() == 6


@given(st.floats(1e-6, 10.0), st.integers(1, 50), st.integers(0, 50), st.lists(steps, max_size=20))
def test_a_timed_budget_is_bounded(
    seconds: float, first_guess: int, slack: int, steps: list[tuple[int, float]]
) -> None:
    budget = TimedBudget(seconds, first_guess, most=first_guess + slack)
    for num_tokens, took in steps:
        budget.observe(num_tokens, took)
        assert 1 <= budget.tokens() <= first_guess + slack


def test_a_budget_of_one_token_recovers_from_a_stall() -> None:
    """Stalls reduce the budget to one token. The fast steps after the stalls raise it again."""
    clock, pool = ManualClock(), BlockPool(64, 4)
    budget = TimedBudget(0.008, first_guess=8, most=64)
    scheduler = Scheduler(pool, SchedulerConfig(BARE), clock, budget=budget)
    cost = CostModel(prefill_step=0.0, prefill_token=1e-3)
    engine = SimEngine(SimModel(), cost, clock, num_blocks=64, block_size=4)
    loop = StepLoop(scheduler, engine)
    scheduler.submit(make_request("decodes all the while", max_tokens=100))
    loop.run_once()
    for _ in range(7):
        budget.observe(budget.tokens(), 1.0)
    assert budget.tokens() == 1
    scheduler.submit(make_request("long", prompt=tuple(range(80))))
    for _ in range(40):
        loop.run_once()
    assert budget.tokens() in (7, 8, 9)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (partial(FixedBudget, 0), "num_tokens"),
        (partial(FixedBudget, -3), "num_tokens"),
        (partial(TimedBudget, 0.0, 1, 1), "seconds"),
        (partial(TimedBudget, -1.0, 1, 1), "seconds"),
        (partial(TimedBudget, 1.0, 0, 1), "first_guess"),
        (partial(TimedBudget, 1.0, 2, 1), "first_guess"),
    ],
)
def test_a_bad_argument_is_named(make: partial[FixedBudget | TimedBudget], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
