"""No admitted request of the highest priority is late while lower priorities are served, in short runs, and at most one
in 200 in long ones: on steady and unsteady machines, with known and unknown lengths of answers, with right and wrong
calibration, at half to ten times the capacity."""

from collections.abc import Sequence
from dataclasses import astuple
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.admission.load import Mix, OfferOutcome, Plan, ReplicaSetup, drawn
from bench.admission.report import missed_while_lower_served
from bench.admission.simulated import capacity, run
from specialist.engines.sim.engine import CostModel

TOP = Mix().priorities[0]
LOADS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
UNSTEADY = ReplicaSetup(noise=0.3, stalls=0.02)
WRONG = tuple(CostModel(*(factor * cost for cost in astuple(CostModel()))) for factor in (1 / 3, 3.0))
PLANTS = (ReplicaSetup(), UNSTEADY, *(ReplicaSetup(noise=0.15, guess=guess) for guess in WRONG))


@cache
def rate() -> float:
    return capacity(ReplicaSetup(), drawn(ReplicaSetup().context), seed=7)


def play(setup: ReplicaSetup, load: float, early: float, seed: int, seconds: float) -> Sequence[OfferOutcome]:
    plan = Plan(setup, drawn(setup.context), Mix(early=early), LOADS, seconds, (seed,), followed=0)
    return run(plan, plan.offers(load, rate(), seed), load, "octet", seed).outcomes


def late_top(outcomes: Sequence[OfferOutcome]) -> list[OfferOutcome]:
    return [each for each in missed_while_lower_served(outcomes) if each.offer.priority == TOP]


runs = given(st.sampled_from(PLANTS), st.sampled_from(LOADS), st.sampled_from((0.0, 1.0)), st.integers(1, 10**6))


@runs
@settings(max_examples=12, deadline=None, derandomize=True)
def test_lower_priorities_give_way_in_time(setup: ReplicaSetup, load: float, early: float, seed: int) -> None:
    assert late_top(play(setup, load, early, seed, seconds=6.0)) == []


@pytest.mark.slow
@pytest.mark.parametrize("early", [0.0, 1.0], ids=["known lengths", "unknown lengths"])
@pytest.mark.parametrize("setup", PLANTS, ids=["steady", "unsteady", "priced too low", "priced too high"])
def test_at_most_one_in_two_hundred_is_late_in_long_runs(setup: ReplicaSetup, early: float) -> None:
    """Steps may stall, and one answer in a hundred is longer than those for which time is kept."""
    runs = [play(setup, load, early, seed, seconds=30.0) for load in LOADS for seed in (1, 2, 3)]
    admitted = [each for run in runs for each in run if each.offer.priority == TOP and each.end != "refused"]
    assert sum(len(late_top(run)) for run in runs) <= len(admitted) // 200
