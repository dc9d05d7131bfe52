"""How much of a prompt is in the cache already."""

from kvpool import TokenChain, chain_root
from specialist.request import Request
from specialist.scheduler import Scheduler


def peek_hit_tokens(scheduler: Scheduler, request: Request) -> int:
    """Prompt tokens that would not be computed, were it admitted now. Changes nothing.

    Only looks blocks up, so another thread than the scheduler's may call it; what it hears may be a step old.
    """
    pool = scheduler.pool
    root = chain_root(request.lane, request.tenant_salt, scheduler.config.kv_dtype, pool.block_size)
    chain = TokenChain(root, pool.block_size, request.prompt)
    return pool.admit(chain, len(chain)).num_hit_tokens
