"""A fixed pool of KV blocks with a prefix cache. Knows tokens and keys; nothing of requests or priorities."""

from kvpool.block import GARBAGE, Block, BlockId, BlockKey
from kvpool.chain import TokenChain, as_tokens, chain_root
from kvpool.counters import Counters, MissReason
from kvpool.errors import InvariantViolation, PoolExhausted, StalePlan
from kvpool.plan import AdmissionPlan
from kvpool.pool import BlockPool
from kvpool.reclaim import Reclaim
from kvpool.table import BlockTable

__all__ = [
    "GARBAGE",
    "AdmissionPlan",
    "Block",
    "BlockId",
    "BlockKey",
    "BlockPool",
    "BlockTable",
    "Counters",
    "InvariantViolation",
    "MissReason",
    "PoolExhausted",
    "Reclaim",
    "StalePlan",
    "TokenChain",
    "as_tokens",
    "chain_root",
]
