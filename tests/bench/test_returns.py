"""Laws of the simulation in which refused callers return."""

from collections import Counter
from functools import cache

import pytest

from bench.admission.load import ENDS, Mix, Plan, ReplicaSetup, drawn
from bench.admission.return_report import return_records, return_targets
from bench.admission.returns import CALLERS, RETURNS, Callers, ReturnRun, play_returns
from bench.admission.simulated import capacity

SETUP = ReplicaSetup()
SOURCE = drawn(SETUP.context)
pytestmark = pytest.mark.parametrize("seconds", [10.0, pytest.param(15.0, marks=pytest.mark.slow)])


@cache
def played(callers: Callers, seconds: float) -> ReturnRun:
    plan = Plan(SETUP, SOURCE, Mix(), (4.0,), seconds, (1,))
    offers = plan.offers(4.0, capacity(SETUP, SOURCE, seed=7), 1)
    return play_returns(plan, offers, 4.0, callers, 1)


@pytest.mark.parametrize("callers", CALLERS, ids=lambda each: each.name)
def test_every_request_ends_once_and_returns_as_its_caller_does(callers: Callers, seconds: float) -> None:
    run = played(callers, seconds)
    assert len({each.offer.number for each in run.outcomes}) == len(run.outcomes)
    assert all(each.end in ENDS for each in run.outcomes)
    returns = Counter(each.offer.number for each in run.comebacks)
    assert max(returns.values(), default=0) <= RETURNS
    if callers.returns == "never":
        assert not returns
    if callers.returns == "with a ticket":
        assert all(each.has_ticket for each in run.comebacks)
    if not callers.tickets:
        assert not run.num_tickets and not any(each.has_ticket for each in run.comebacks)
    if callers.half:
        assert all(number % 2 == 0 for number in returns)


def test_callers_without_tickets_are_not_affected_by_their_existence(seconds: float) -> None:
    """If no caller returns, a place that lapses costs the others almost nothing."""
    alone, beside = (next(each for each in CALLERS if each.name == name) for name in ("leave", "tickets, but leave"))
    assert played(beside, seconds).counts.work >= 0.9 * played(alone, seconds).counts.work


def test_a_report_names_each_kind_of_caller_and_its_targets(seconds: float) -> None:
    runs = [played(each, seconds) for each in CALLERS]
    records = list(return_records(runs))
    assert {each.system for each in records} == {each.name for each in CALLERS}
    metrics = {each.metric for each in records}
    assert {metric for _, metric in return_targets((3.0,))} <= metrics | {"ticket's time within a factor of 2"}
