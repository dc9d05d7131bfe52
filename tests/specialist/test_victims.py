"""The choice of the sequence to preempt, one rule at a time."""

from dataclasses import replace

import pytest

from admission.policy import may_preempt, rank_request
from kvpool import BlockPool, TokenChain
from octet.clock import ManualClock
from specialist.engines.sim.engine import SimMemory, SimState
from specialist.scheduling.scheduler import (
    Scheduler,
    SchedulerConfig,
    choose_admission_victims,
    choose_growth_victim,
    victim_order,
)
from specialist.scheduling.sequence import Request, Sequence
from specialist.scheduling.step import Preempted, StepOutcome
from tests.laws.scenario import BARE

PLAIN = Request("x", BARE, (1, 2, 3, 4), max_tokens=4, priority=1, arrival=5.0)


def runner(index: int, *, hybrid: bool = False, num_computed: int = 4, **changes: float) -> Sequence:
    request = replace(PLAIN, request_id=f"r{index}", **changes)  # type: ignore[arg-type]
    seq = Sequence(request, TokenChain(b"root", 2, request.prompt), index, max_total_tokens=8, draft_window=0)
    seq.num_computed = num_computed
    seq.state = SimState(SimMemory(2, 2)) if hybrid else None
    return seq


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (runner(1, priority=0, arrival=0.0, hybrid=True), runner(2, priority=1)),
        (runner(1, arrival=0.0), runner(2, hybrid=True, arrival=9.0)),
        (runner(1, arrival=9.0, num_computed=9), runner(2, arrival=5.0, num_computed=1)),
        (runner(1, num_computed=1), runner(2, num_computed=2)),
        (runner(2), runner(1)),
    ],
    ids=["lowest priority", "pure attention", "newest", "cheapest to restore", "last to come"],
)
def test_each_rule_decides_where_the_ones_before_it_do_not(first: Sequence, then: Sequence) -> None:
    assert victim_order(first) < victim_order(then)


@pytest.mark.parametrize(("priority", "may"), [(0, False), (1, False), (2, True)])
def test_only_a_strictly_higher_priority_may_preempt(priority: int, may: bool) -> None:
    """If equal priority were enough, two requests could preempt each other forever."""
    assert may_preempt(rank_request(priority, 6.0, 8.0, 2), rank_request(1, 5.0, None, 1)) is may


def admitted(pool: BlockPool, seq: Sequence, num_tokens: int) -> Sequence:
    seq.table = pool.apply(pool.admit(seq.chain, num_tokens))
    return seq


def test_no_sequence_is_preempted_without_effect() -> None:
    pool = BlockPool(9, 2)
    runners = [admitted(pool, runner(i), 4) for i in range(3)]
    newcomer = TokenChain(b"other", 2, range(20))
    assert choose_admission_victims(pool.admit(newcomer, 16), runners, most=2, pool=pool) == []
    assert choose_admission_victims(pool.admit(newcomer, 12), runners, most=2, pool=pool) == [runners[2], runners[1]]
    assert choose_admission_victims(pool.admit(newcomer, 12), runners, most=1, pool=pool) == []


def test_a_victim_with_shared_blocks_is_passed_over() -> None:
    pool = BlockPool(9, 2)
    owner = admitted(pool, runner(1, priority=5), 4)
    assert owner.table is not None
    pool.register(owner.table, owner.chain, 4)
    sharer = runner(2, priority=0)
    sharer.chain.extend([9])
    sharer.table = pool.apply(pool.admit(sharer.chain, 4))
    private = admitted(pool, runner(3, priority=1), 4)
    assert not pool.frees_a_block(sharer.table)
    assert choose_growth_victim([owner], [owner, sharer, private], pool) is private
    plan = pool.admit(TokenChain(b"other", 2, range(9)), 10)
    assert choose_admission_victims(plan, [sharer, private], most=2, pool=pool) == [private]


def test_no_sequence_grows_at_the_cost_of_a_higher_priority() -> None:
    """If the sequence that grows has the lowest priority, it is preempted itself, even if it shares all its blocks and
    so frees none."""
    pool = BlockPool(9, 2)
    low = admitted(pool, runner(1, priority=0), 4)
    assert low.table is not None
    pool.register(low.table, low.chain, 4)
    high = runner(2, priority=5)
    high.chain.extend([9])
    high.table = pool.apply(pool.admit(high.chain, 6))
    assert not pool.frees_a_block(low.table)
    assert choose_growth_victim([low], [low, high], pool) is low
    assert choose_growth_victim([high], [low, high], pool) is high


@pytest.mark.parametrize("lack", ["slots", "blocks"])
@pytest.mark.parametrize(("priority", "preempted"), [(0, []), (2, ["r2"])])
def test_only_a_higher_priority_preempts_for_its_admission(lack: str, priority: int, preempted: list[str]) -> None:
    scheduler = Scheduler(
        BlockPool(100 if lack == "slots" else 7, 2),
        SchedulerConfig(BARE, max_running=2 if lack == "slots" else 9, watermark=0.0),
        ManualClock(),
    )
    for name in ("r1", "r2"):
        scheduler.submit(replace(PLAIN, request_id=name, prompt=(int(name[1:]), 2, 3, 4)))
    for _ in range(2):
        step = scheduler.assemble_step()
        assert step is not None
        scheduler.commit(step, StepOutcome(tuple((7,) * row.num_samples for row in step.rows)))
    scheduler.submit(replace(PLAIN, request_id="new", prompt=(98, 2, 3), priority=priority, arrival=6.0, deadline=8.0))
    scheduler.take_events()
    scheduler.assemble_step()
    victims = [event.request_id for event in scheduler.take_events() if isinstance(event, Preempted)]
    assert victims == preempted
