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
    restored: list[Content]


@dataclass
class NaiveTable:
    blocks: list[int]
    num_settled: int


@dataclass
class NaiveHost:
    capacity: int
    contents: list[Content] = field(default_factory=list)
    """Those that may be dropped; the first one goes first."""
    held: dict[int, Content] = field(default_factory=dict)
    """Those that are about to be copied to a block, by that block."""
    dropped: int = 0

    def has(self, content: Content) -> bool:
        return content in self.contents or content in self.held.values()

    def keep(self, block: int, content: Content) -> Content | None:
        """Return what was lost instead."""
        lost = None
        if block in self.held:
            del self.held[block]
        elif content in self.contents:
            self.contents.remove(content)
        elif len(self.contents) + len(self.held) == self.capacity:
            self.dropped += 1
            if not self.contents:
                return content
            lost = self.contents.pop(0)
        self.contents.append(content)
        return lost

    def copied(self) -> None:
        self.contents[:0] = reversed(self.held.values())
        self.held.clear()


@dataclass
class NaivePool:
    capacity: int
    block_size: int
    prefix_cache: bool
    host: NaiveHost = field(default_factory=lambda: NaiveHost(0))
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
        num_here = len(found)
        found += takewhile(self._is_on_host_only, wanted[num_here:])
        num_hit = max((n for n in range(1, len(found) + 1) if depths is None or n in depths), default=0)
        hit = [block for wish in found[:num_hit] for block, content in self.cached.items() if content == wish]
        restored = found[num_here:num_hit]
        available = [block for block in self.free if block not in hit]
        num_fresh = max(0, self.blocks_for(num_tokens) - num_hit) + len(restored)
        return Forecast(
            hit=hit,
            fresh=available[:num_fresh],
            shortage=max(0, num_fresh + headroom - len(available)),
            num_cached=len(found),
            misses=self._misses(wanted[len(found) :], num_held_back=len(found) - num_hit),
            restored=restored,
        )

    def _is_on_host_only(self, content: Content) -> bool:
        return self.host.has(content) and content not in self.cached.values()

    def admit(self, handle: int, forecast: Forecast) -> None:
        num_hit = len(forecast.hit) + len(forecast.restored)
        self.tables[handle] = NaiveTable(forecast.hit + forecast.fresh, num_settled=num_hit)
        for content in forecast.restored:
            self.host.contents.remove(content)
        self.host.held |= {-index: content for index, content in enumerate(forecast.restored, 1)}  # no block yet
        self._take(forecast.hit + forecast.fresh, evict=forecast.fresh)
        for index, content in enumerate(forecast.restored, 1):
            del self.host.held[-index]
            block = forecast.fresh[index - 1]
            self.host.held[block] = self.cached[block] = content
        self.hits += num_hit
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
        for block in [block for block in evict if block in self.cached]:
            content = self.cached.pop(block)
            self.evictions += 1
            lost = self.host.keep(block, content) if self.host.capacity else content
            if lost is None or lost in self.cached.values():
                continue
            if lost not in self.evicted[-1]:
                self.evicted[-1].append(lost)
            if len(self.evicted[-1]) == self.capacity:
                self.evicted.append([])
