"""Who gives way, one rule at a time."""

from dataclasses import replace

import pytest

from kvpool import BlockPool, TokenChain
from specialist.engines.sim.memory import SimMemory
from specialist.engines.sim.state import SimState
from specialist.request import Request
from specialist.sequence import Sequence
from specialist.victims import victim_of_growth, victim_order, victims_for
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


def admitted(pool: BlockPool, seq: Sequence, num_tokens: int) -> Sequence:
    seq.table = pool.apply(pool.admit(seq.chain, num_tokens))
    return seq


def test_nobody_gives_way_in_vain() -> None:
    pool = BlockPool(9, 2)
    runners = [admitted(pool, runner(i), 4) for i in range(3)]
    newcomer = TokenChain(b"other", 2, range(20))
    assert victims_for(pool.admit(newcomer, 16), runners, most=2, pool=pool) == []
    assert victims_for(pool.admit(newcomer, 12), runners, most=2, pool=pool) == [runners[2], runners[1]]
    assert victims_for(pool.admit(newcomer, 12), runners, most=1, pool=pool) == []


def test_one_whose_blocks_others_share_is_passed_over() -> None:
    pool = BlockPool(9, 2)
    owner = admitted(pool, runner(1, priority=5), 4)
    assert owner.table is not None
    pool.register(owner.table, owner.chain, 4)
    sharer = runner(2, priority=0)
    sharer.chain.extend([9])
    sharer.table = pool.apply(pool.admit(sharer.chain, 4))
    private = admitted(pool, runner(3, priority=1), 4)
    assert not pool.frees_a_block(sharer.table)
    assert victim_of_growth([owner], [owner, sharer, private], pool) is private
    plan = pool.admit(TokenChain(b"other", 2, range(9)), 10)
    assert victims_for(plan, [sharer, private], most=2, pool=pool) == [private]


def test_nobody_grows_at_the_cost_of_a_higher_priority() -> None:
    """The weakest that grows shares all its blocks: it gives up its own place, though that frees nothing."""
    pool = BlockPool(9, 2)
    low = admitted(pool, runner(1, priority=0), 4)
    assert low.table is not None
    pool.register(low.table, low.chain, 4)
    high = runner(2, priority=5)
    high.chain.extend([9])
    high.table = pool.apply(pool.admit(high.chain, 6))
    assert not pool.frees_a_block(low.table)
    assert victim_of_growth([low], [low, high], pool) is low
    assert victim_of_growth([high], [low, high], pool) is high
