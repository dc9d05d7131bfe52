"""Blocks, the block tables of sequences, and admission plans."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NewType, get_args

BlockId = NewType("BlockId", int)
BlockKey = NewType("BlockKey", bytes)

GARBAGE = BlockId(0)  # padding rows write here. Never allocated, never cached, never read.


class Block:
    """A fixed number of token slots. A free block is an evictable cache entry if it has a key, and empty otherwise."""

    __slots__ = ("block_id", "key", "next", "prev", "ref_count", "tokens")

    prev: "Block"
    next: "Block"

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: BlockKey | None = None
        self.tokens = b""
        self.prev = self.next = self

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_count={self.ref_count}, keyed={self.key is not None})"


class BlockTable:
    """The block ids of one sequence, in token order. Only the pool changes a table, and only by appending ids: earlier
    ids stay the same until the table is released."""

    __slots__ = ("block_ids", "block_size", "num_registered", "released")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.block_ids = array("i")
        self.num_registered = 0
        """The number of leading blocks that need no registration: hits, and blocks that were registered already."""
        self.released = False

    def __len__(self) -> int:
        return len(self.block_ids)

    @property
    def num_slots(self) -> int:
        return len(self.block_ids) * self.block_size

    def slots(self, start: int, stop: int) -> Iterator[int]:
        """Yield the physical slot of each token position in [start, stop)."""
        size = self.block_size
        for position in range(start, stop):
            yield self.block_ids[position // size] * size + position % size


class PoolExhausted(RuntimeError):
    """Fewer blocks are free than a plan or a caller needs."""


class StalePlan(RuntimeError):
    """The pool changed between `admit()` and `apply()`; plan again."""


class InvariantViolation(AssertionError):
    """The pool is inconsistent: a bug, never a consequence of load."""


MissReason = Literal["cold", "evicted", "tokens_differ", "no_boundary", "disabled"]
"""Why a cacheable block was not reused: never seen; seen and evicted since; the key matched but the tokens did not;
cached, but past the last boundary at which a sequence could resume; or the prefix cache is off."""


@dataclass(slots=True)
class PoolCounters:
    """Counts of blocks since the pool was created."""

    hits: int = 0
    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(get_args(MissReason), 0))
    evictions: int = 0
    reads: int = 0  # blocks that steps read through their tables
    writes: int = 0  # blocks that steps wrote tokens into


@dataclass(frozen=True, slots=True)
class HostBlock:
    """The content of a cached block in host memory."""

    place: int  # its number there
    key: BlockKey
    tokens: bytes


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """The blocks of one admission, planned by `BlockPool.admit()`. Valid until the pool changes."""

    block_size: int
    hit: tuple[Block, ...]  # cached blocks to share, from the first token on
    restored: tuple[HostBlock, ...]  # cached blocks after these, to be copied from host memory to allocated blocks
    num_cached: int  # leading blocks that are cached; more than `num_hit` if the hit had to end at an earlier boundary
    num_uncached: int  # blocks that could have been cached but are not
    uncached_reason: MissReason
    num_fresh: int  # blocks to allocate after those
    shortage: int  # blocks that must become free before this plan can be applied; 0 if it can be applied now
    pool: object = field(repr=False)
    version: int

    @property
    def num_hit(self) -> int:
        """The number of leading blocks whose tokens need not be computed."""
        return len(self.hit) + len(self.restored)

    @property
    def misses(self) -> dict[MissReason, int]:
        """The number of cacheable blocks that must be computed, by reason."""
        held_back = self.num_cached - self.num_hit
        reasons: list[tuple[MissReason, int]] = [("no_boundary", held_back), (self.uncached_reason, self.num_uncached)]
        return {reason: count for reason, count in reasons if count}

    @property
    def num_hit_tokens(self) -> int:
        return self.num_hit * self.block_size
