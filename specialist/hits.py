"""How much of a prompt is in the cache already."""

from typing import NamedTuple

from kvpool import TokenChain, chain_root
from specialist.request import Request
from specialist.scheduler import Scheduler


class Hits(NamedTuple):
    """Prompt tokens."""

    found: int = 0
    """That would not be computed."""
    shared: int = 0
    """Of those, in blocks that somebody holds; the others take room once they are held again."""


def peek_hits(scheduler: Scheduler, request: Request) -> Hits:
    """As if it were admitted now. Changes nothing.

    Only looks blocks up, so another thread than the scheduler's may call it; what it hears may be a step old.
    """
    pool = scheduler.pool
    root = chain_root(request.lane, request.tenant_salt, scheduler.config.kv_dtype, pool.block_size)
    chain = TokenChain(root, pool.block_size, request.prompt)
    plan = pool.admit(chain, len(chain))
    num_held = sum(block.ref_count > 0 for block in plan.hit)
    return Hits(plan.num_hit_tokens, num_held * pool.block_size)
