"""What the pool has done since it was made. All counts are blocks and only ever grow."""

from dataclasses import dataclass, field
from typing import Literal, get_args

MissReason = Literal["cold", "evicted", "tokens_differ", "no_boundary", "disabled"]
"""Why a cacheable block was not reused: never seen; seen and evicted since; the key matched and the tokens did
not; cached, but past the last boundary its owner could resume from; or the prefix cache is off."""


@dataclass(slots=True)
class Counters:
    hits: int = 0
    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(get_args(MissReason), 0))
    evictions: int = 0
    reads: int = 0
    """Blocks that steps gathered through their tables."""
    writes: int = 0
    """Blocks that steps wrote tokens into."""
