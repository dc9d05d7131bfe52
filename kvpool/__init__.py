"""A fixed pool of KV blocks with a prefix cache. It handles tokens and keys, not requests or priorities."""

from kvpool.block import (
    GARBAGE,
    AdmissionPlan,
    Block,
    BlockId,
    BlockKey,
    BlockTable,
    InvariantViolation,
    MissReason,
    PoolCounters,
    PoolExhausted,
    StalePlan,
)
from kvpool.chain import TokenChain, as_tokens, chain_root
from kvpool.pool import BlockPool, Reclaim

__all__ = [
    "GARBAGE",
    "AdmissionPlan",
    "Block",
    "BlockId",
    "BlockKey",
    "BlockPool",
    "BlockTable",
    "InvariantViolation",
    "MissReason",
    "PoolCounters",
    "PoolExhausted",
    "Reclaim",
    "StalePlan",
    "TokenChain",
    "as_tokens",
    "chain_root",
]
