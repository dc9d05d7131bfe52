"""Who gives way when the pool or the seats run out."""

from collections.abc import Iterable

from kvpool import BlockPool, BlockTable
from kvpool.plan import AdmissionPlan
from specialist.sequence import Sequence


def victim_order(seq: Sequence) -> tuple[float, ...]:
    """Smallest gives way first: lowest priority, then pure attention before hybrid, newest, cheapest to restore."""
    request = seq.request
    return (request.priority, seq.state is not None, -request.arrival, seq.num_computed, -seq.index)


def victims_for(plan: AdmissionPlan, candidates: Iterable[Sequence], most: int, pool: BlockPool) -> list[Sequence]:
    """The first few in order whose blocks make the plan possible; nobody if even `most` of them would not.

    One whose blocks would not come free, because others share them, is passed over.
    """
    chosen: list[Sequence] = []
    tables: list[BlockTable] = []
    gained = 0
    for seq in sorted(candidates, key=victim_order):
        if len(chosen) == most or seq.table is None:
            break
        gain = pool.reclaimable([*tables, seq.table], keep=plan.hit)
        if gain > gained:
            gained = gain
            chosen.append(seq)
            tables.append(seq.table)
            if gained >= plan.shortage:
                return chosen
    return []


def worst_of(running: Iterable[Sequence], pool: BlockPool) -> Sequence | None:
    """The first in order who would free a block."""
    reclaiming = (seq for seq in running if seq.table is not None and pool.reclaimable([seq.table]))
    return min(reclaiming, key=victim_order, default=None)
