"""Who gives way when the pool or the seats run out."""

from collections.abc import Collection, Iterable

from kvpool import AdmissionPlan, BlockPool, InvariantViolation, Reclaim
from specialist.sequence import Sequence


def victim_order(seq: Sequence) -> tuple[float, ...]:
    """Smallest gives way first: lowest priority, then pure attention before hybrid, newest, cheapest to restore."""
    request = seq.request
    return (request.priority, seq.state is not None, -request.arrival, seq.num_computed, -seq.index)


def victims_for(plan: AdmissionPlan, candidates: Collection[Sequence], most: int, pool: BlockPool) -> list[Sequence]:
    """The first few in order whose blocks make the plan possible; nobody if even `most` of them would not.

    One whose blocks would not come free, because others share them, is passed over.
    """
    if sum(len(seq.running_table()) for seq in candidates) < plan.shortage:
        return []
    reclaim = Reclaim(pool, keep=plan.hit)
    chosen: list[Sequence] = []
    for seq in sorted(candidates, key=victim_order):
        if len(chosen) == most:
            break
        if reclaim.gain(seq.running_table()) > 0:
            reclaim.add(seq.running_table())
            chosen.append(seq)
            if reclaim.num_blocks >= plan.shortage:
                return chosen
    return []


def victim_of_growth(growing: Collection[Sequence], running: Iterable[Sequence], pool: BlockPool) -> Sequence:
    """The first in order who would free a block; but before anyone above the weakest of the growing, that one."""
    weakest = min(growing, key=victim_order)
    for seq in sorted(running, key=victim_order):
        if seq is weakest or pool.frees_a_block(seq.running_table()):
            return seq
    raise InvariantViolation("the growing are not among the running")
