"""What admitting a sequence would take, decided once."""

from dataclasses import dataclass, field

from kvpool.block import Block
from kvpool.counters import MissReason


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """The answer of `BlockPool.admit()`. Valid until the pool next changes, and applied as it stands."""

    block_size: int
    hit: tuple[Block, ...]
    """Cached blocks to share, from the first token on."""
    num_cached: int
    """Leading blocks that are cached, shared or not: more than `hit` when a boundary held it back."""
    num_uncached: int
    """Blocks that could have been cached and are not."""
    uncached_reason: MissReason
    num_fresh: int
    """Blocks to allocate behind the hit."""
    shortage: int
    """Blocks that must come free before this plan can be applied; 0 when it can be applied now."""
    pool: object = field(repr=False)
    version: int

    @property
    def misses(self) -> dict[MissReason, int]:
        """Why blocks that a hit could have covered must be computed."""
        held_back = self.num_cached - len(self.hit)
        reasons: list[tuple[MissReason, int]] = [("no_boundary", held_back), (self.uncached_reason, self.num_uncached)]
        return {reason: count for reason, count in reasons if count}

    @property
    def num_hit_tokens(self) -> int:
        return len(self.hit) * self.block_size
