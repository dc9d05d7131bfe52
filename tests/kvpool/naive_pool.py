"""A simple model of the pool with plain lists: slow, but short enough to trust."""

from collections.abc import Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, takewhile

from kvpool import MissReason

Content = tuple[int, tuple[int, ...]]
"""What a cached block holds: its owner, and all tokens up to the end of the block."""


@dataclass(frozen=True)
class Forecast:
    hit: list[int]
    fresh: list[int]
    shortage: int
    num_cached: int
    misses: dict[MissReason, int]


@dataclass
class NaiveTable:
    blocks: list[int]
    num_settled: int


@dataclass
class NaivePool:
    capacity: int
    block_size: int
    prefix_cache: bool
    free: list[int] = field(init=False)
    cached: dict[int, Content] = field(default_factory=dict)
    evicted: list[list[Content]] = field(default_factory=lambda: [[]])
    """Evicted contents, in generations as large as the pool. The last two generations are kept."""
    tables: dict[int, NaiveTable] = field(default_factory=dict)
    hits: int = 0
    misses: dict[MissReason, int] = field(default_factory=dict)
    evictions: int = 0

    def __post_init__(self) -> None:
        self.free = list(range(1, self.capacity + 1))

    def forecast(
        self, owner: int, tokens: tuple[int, ...], num_tokens: int, headroom: int, depths: Collection[int] | None
    ) -> Forecast:
        """Return the result that an admission must have. If `depths` is given, the number of hit blocks must be 0 or
        one of `depths`."""
        wanted = [(owner, tokens[:end]) for end in range(self.block_size, len(tokens), self.block_size)]
        found = list(takewhile(lambda content: content in self.cached.values(), wanted))
        num_hit = max((n for n in range(1, len(found) + 1) if depths is None or n in depths), default=0)
        hit = [block for wish in found[:num_hit] for block, content in self.cached.items() if content == wish]
        available = [block for block in self.free if block not in hit]
        num_fresh = max(0, self.blocks_for(num_tokens) - num_hit)
        return Forecast(
            hit=hit,
            fresh=available[:num_fresh],
            shortage=max(0, num_fresh + headroom - len(available)),
            num_cached=len(found),
            misses=self._misses(wanted[len(found) :], num_held_back=len(found) - num_hit),
        )

    def admit(self, handle: int, forecast: Forecast) -> None:
        self.tables[handle] = NaiveTable(forecast.hit + forecast.fresh, num_settled=len(forecast.hit))
        self._take(forecast.hit + forecast.fresh, evict=forecast.fresh)
        self.hits += len(forecast.hit)
        for reason, count in forecast.misses.items():
            self.misses[reason] = self.misses.get(reason, 0) + count

    def blocks_for(self, num_tokens: int) -> int:
        return len(range(0, num_tokens, self.block_size))

    def growth(self, handle: int, num_tokens: int) -> int:
        return max(0, self.blocks_for(num_tokens) - len(self.tables[handle].blocks))

    def grow(self, handle: int, num_tokens: int) -> None:
        fresh = self.free[: self.growth(handle, num_tokens)]
        self.tables[handle].blocks += fresh
        self._take(fresh, evict=fresh)

    def register(self, handle: int, owner: int, tokens: tuple[int, ...], num_computed: int) -> None:
        table = self.tables[handle]
        num_full = num_computed // self.block_size
        for i in range(table.num_settled, num_full):
            content = (owner, tokens[: (i + 1) * self.block_size])
            if self.prefix_cache and content not in self.cached.values():
                self.cached[table.blocks[i]] = content
        table.num_settled = max(table.num_settled, num_full)

    def release(self, handle: int) -> None:
        for block in reversed(self.tables.pop(handle).blocks):
            if not any(block in table.blocks for table in self.tables.values()):
                self.free.insert(len(self.free) if block in self.cached else 0, block)

    def reclaimable(self, handles: Iterable[int], keep: Iterable[int]) -> int:
        after = deepcopy(self)
        for handle in handles:
            after.release(handle)
        return len(set(after.free) - set(self.free) - set(keep))

    def _misses(self, uncached: list[Content], num_held_back: int) -> dict[MissReason, int]:
        misses: dict[MissReason, int] = {"no_boundary": num_held_back}
        if not self.prefix_cache:
            misses["disabled"] = len(uncached)
        else:
            misses["evicted" if uncached and uncached[0] in chain(*self.evicted[-2:]) else "cold"] = len(uncached)
        return {reason: count for reason, count in misses.items() if count}

    def _take(self, blocks: list[int], *, evict: list[int]) -> None:
        self.free = [block for block in self.free if block not in blocks]
        for content in [self.cached.pop(block) for block in evict if block in self.cached]:
            if content not in self.evicted[-1]:
                self.evicted[-1].append(content)
            if len(self.evicted[-1]) == self.capacity:
                self.evicted.append([])
            self.evictions += 1
