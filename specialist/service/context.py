"""Whether the pool has room for the context that was asked for."""

import logging

from specialist.service.replica import Replica
from specialist.service.settings import MIN_CONTEXT

_log = logging.getLogger(__name__)


def check_context(replica: Replica, asked: int | None) -> None:
    """Says what the context is where the pool is too small for it. Raises ValueError where nothing could be served."""
    wanted = asked or replica.model.context
    if replica.context < MIN_CONTEXT:
        raise ValueError(
            f"the context is {replica.context} tokens and must be at least {MIN_CONTEXT}: "
            f"give the KV pool more with --kv-blocks or --kv-memory"
        )
    if replica.context < wanted:
        _log.warning(
            "the context is %s tokens, not %s: more do not fit into the KV pool (--kv-blocks, --kv-memory)",
            f"{replica.context:,}",
            f"{wanted:,}",
        )
