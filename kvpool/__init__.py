"""A fixed pool of KV blocks with a prefix cache. It handles tokens and keys, not requests or priorities."""

from kvpool.block import GARBAGE as GARBAGE
from kvpool.block import AdmissionPlan as AdmissionPlan
from kvpool.block import Block as Block
from kvpool.block import BlockId as BlockId
from kvpool.block import BlockKey as BlockKey
from kvpool.block import BlockTable as BlockTable
from kvpool.block import HostBlock as HostBlock
from kvpool.block import InvariantViolation as InvariantViolation
from kvpool.block import MissReason as MissReason
from kvpool.block import PoolCounters as PoolCounters
from kvpool.block import PoolExhausted as PoolExhausted
from kvpool.block import StalePlan as StalePlan
from kvpool.chain import TokenChain as TokenChain
from kvpool.chain import as_tokens as as_tokens
from kvpool.chain import chain_root as chain_root
from kvpool.host import BlockCopy as BlockCopy
from kvpool.host import BlockStore as BlockStore
from kvpool.host import HostCache as HostCache
from kvpool.pool import BlockPool as BlockPool
from kvpool.pool import Reclaim as Reclaim
