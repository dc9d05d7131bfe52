"""The pool: it shares cached blocks, allocates free ones, takes them back, and checks that none is lost."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from kvpool.block import (
    GARBAGE,
    AdmissionPlan,
    Block,
    BlockId,
    BlockKey,
    BlockTable,
    HostBlock,
    InvariantViolation,
    MissReason,
    PoolCounters,
    PoolExhausted,
    StalePlan,
)
from kvpool.chain import TokenChain
from kvpool.host import HostCache


class FreeList:
    """The free blocks of a pool: a ring around a sentinel, linked through the blocks themselves. Blocks are taken from
    the front. Empty blocks return to the front and cache entries to the back, so that the least recently used entry is
    evicted first."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.ring = Block(BlockId(-1))
        self._length = 0
        self.push_back(blocks)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self.ring.next
        while block is not self.ring:
            yield block
            block = block.next

    def take(self, count: int) -> list[Block]:
        """Remove and return the first `count` blocks."""
        ring = self.ring
        taken = []
        block = ring.next
        for _ in range(count):
            taken.append(block)
            block = block.next
        ring.next = block
        block.prev = ring
        self._length -= count
        return taken

    def remove(self, block: Block) -> None:
        block.prev.next = block.next
        block.next.prev = block.prev
        self._length -= 1

    def push_front(self, blocks: Iterable[Block]) -> None:
        """Add the blocks one after the other, each before all others."""
        ring = self.ring
        after = ring.next
        for block in blocks:
            block.next = after
            after.prev = block
            after = block
            self._length += 1
        after.prev, ring.next = ring, after

    def push_back(self, blocks: Iterable[Block]) -> None:
        """Add the blocks one after the other, each behind all others."""
        ring = self.ring
        before = ring.prev
        for block in blocks:
            block.prev = before
            before.next = block
            before = block
            self._length += 1
        before.next, ring.prev = ring, before


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each; the number never changes. Block 0 is reserved for padding."""

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_cache: bool = True, host: HostCache | None = None
    ) -> None:
        """`host` keeps the content of evicted blocks. Call its `copy_pending()` before each step."""
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (block 0 is reserved), got {num_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        if host is not None and not prefix_cache:
            raise ValueError("without a prefix cache, no block is kept in host memory")
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.blocks = [Block(BlockId(i)) for i in range(num_blocks)]
        self.free = FreeList(self.blocks[GARBAGE + 1 :])
        self.index: dict[BlockKey, Block] = {}
        """One block for each key. If two sequences compute the same prefix, only the first block gets the key."""
        self.host = host
        self.tables: dict[int, BlockTable] = {}  # live tables by `id()`; they hold the references to blocks
        self.counters = PoolCounters()
        self._version = 0
        self._evicted = RecentlyEvicted(self.capacity)

    @property
    def capacity(self) -> int:
        """The number of blocks that sequences can hold."""
        return len(self.blocks) - 1

    @property
    def num_slots(self) -> int:
        """The maximum number of tokens of a single sequence."""
        return self.capacity * self.block_size

    @property
    def num_free(self) -> int:
        """The number of blocks that can be allocated now, including evictable cache entries."""
        return len(self.free)

    @property
    def num_used(self) -> int:
        return self.capacity - len(self.free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def admit(
        self,
        chain: TokenChain,
        num_tokens: int,
        *,
        headroom: int = 0,
        resumable: Callable[[BlockKey], bool] | None = None,
    ) -> AdmissionPlan:
        """Plan a table of `num_tokens` slots for `chain`, leaving `headroom` blocks free, without changing the pool.
        The reused cached blocks (the hit) never include the chain's last token, which must be computed to sample the
        next one. If `resumable` is given, the hit is shortened until `resumable` accepts its last block's key."""
        if headroom < 0:
            raise ValueError(f"headroom must be at least 0, got {headroom}")
        if chain.block_size != self.block_size:
            raise ValueError(f"blocks have {chain.block_size} tokens in the chain, but {self.block_size} in the pool")
        cached, on_host, uncached_reason = self._match(chain)
        num_cached = num_hit = len(cached) + len(on_host)
        if resumable is not None:
            keys = chain.keys(num_hit)
            while num_hit and not resumable(keys[num_hit - 1]):
                num_hit -= 1
        hit, restored = tuple(cached[:num_hit]), tuple(on_host[: max(0, num_hit - len(cached))])
        num_fresh = max(0, self.blocks_for(num_tokens) - num_hit)
        num_revived = sum(1 for block in hit if block.ref_count == 0)
        return AdmissionPlan(
            block_size=self.block_size,
            hit=hit,
            restored=restored,
            num_cached=num_cached,
            num_uncached=self._cacheable(chain) - num_cached,
            uncached_reason=uncached_reason,
            num_fresh=num_fresh,
            shortage=max(0, len(restored) + num_fresh + num_revived + headroom - len(self.free)),
            pool=self,
            version=self._version,
        )

    def apply(self, plan: AdmissionPlan) -> BlockTable:
        """Apply the plan and return the new table. Raises StalePlan or PoolExhausted, without changing the pool."""
        if plan.pool is not self:
            raise StalePlan("the plan was made by another pool")
        if plan.version != self._version:
            raise StalePlan(f"the plan was made at version {plan.version}, but the pool is at version {self._version}")
        if plan.shortage:
            raise PoolExhausted(f"short of free blocks by {plan.shortage}")
        table = BlockTable(self.block_size)
        for block in plan.hit:
            if block.ref_count == 0:
                self.free.remove(block)
            block.ref_count += 1
            table.block_ids.append(block.block_id)
        table.num_registered = plan.num_hit
        if self.host is not None and plan.restored:
            self._allocate_restored(table, plan.restored, self.host)
        self._allocate(table, plan.num_fresh)
        self.tables[id(table)] = table
        self.counters.hits += plan.num_hit
        for reason, count in plan.misses.items():
            self.counters.misses[reason] += count
        return table

    def blocks_short(self, table: BlockTable, num_tokens: int) -> int:
        """The number of blocks that `grow()` would allocate."""
        return max(0, -(-num_tokens // self.block_size) - len(table.block_ids))

    def grow(self, table: BlockTable, num_tokens: int) -> None:
        """Extend the table to `num_tokens` slots. Raises PoolExhausted and adds no block if too few are free."""
        self._require_live(table)
        short = self.blocks_short(table, num_tokens)
        if short > len(self.free):
            raise PoolExhausted(f"{short} blocks needed, {len(self.free)} free")
        self._allocate(table, short)

    def register(self, table: BlockTable, chain: TokenChain, num_computed: int) -> None:
        """Cache all blocks that are filled by the first `num_computed` tokens. These tokens must not change later."""
        full = num_computed // self.block_size
        first = table.num_registered
        if full <= first:
            return
        self._require_live(table)
        if full > len(table.block_ids):
            raise ValueError(f"{num_computed} computed tokens do not fit in a table of {table.num_slots} slots")
        keys, packed = chain.keys(full), chain.packed(full)
        table.num_registered = full
        if not self.prefix_cache:
            return
        index, blocks = self.index, self.blocks
        for block_id, key, tokens in zip(table.block_ids[first:full], keys[first:], packed[first:], strict=False):
            if key not in index:
                index[key] = block = blocks[block_id]
                block.key, block.tokens = key, tokens
        self._version += 1

    def release(self, table: BlockTable) -> None:
        """Return the table's blocks to the pool. Registered blocks stay in the cache until they are evicted. The last
        block is returned first, so that the end of a sequence is evicted before its beginning."""
        if table.released:
            return
        if self.tables.pop(id(table), None) is not table:
            raise InvariantViolation("the table belongs to another pool")
        table.released = True
        blocks = self.blocks
        empty: list[Block] = []
        keyed: list[Block] = []
        for block_id in reversed(table.block_ids):
            block = blocks[block_id]
            block.ref_count = count = block.ref_count - 1
            if count == 0:
                (empty if block.key is None else keyed).append(block)
            elif count < 0:
                raise InvariantViolation(f"{block} was released more often than it was taken")
        self.free.push_front(empty)
        self.free.push_back(keyed)
        self._version += 1

    def frees_a_block(self, table: BlockTable) -> bool:
        """Whether releasing this table would free a block. The last block is checked first: it is rarely shared."""
        self._require_live(table)
        return any(self.blocks[block_id].ref_count == 1 for block_id in reversed(table.block_ids))

    def count_traffic(self, spans: Iterable[tuple[int, int]]) -> None:
        """Count the blocks that a step reads and writes. A span is the range of positions it computes in a table."""
        size = self.block_size
        reads = writes = 0
        for start, stop in spans:
            if start < stop:
                end = (stop - 1) // size + 1
                reads += end
                writes += end - start // size
        self.counters.reads += reads
        self.counters.writes += writes

    def count_tokens(self, positions: Collection[int]) -> None:
        """Do the same for a step that computes one token in each table, at these positions."""
        size = self.block_size
        self.counters.reads += sum([position // size for position in positions]) + len(positions)
        self.counters.writes += len(positions)

    def check(self) -> None:
        """Check every invariant and raise InvariantViolation if one is broken. Takes time linear in the pool's size."""
        check_pool(self.blocks, self.free, self.index, self.tables.values())
        if self.host is not None:
            self.host.check(self.blocks, self.index)

    @staticmethod
    def _require_live(table: BlockTable) -> None:
        if table.released:
            raise InvariantViolation("the table has been released: its blocks may belong to another table")

    def _cacheable(self, chain: TokenChain) -> int:
        """The number of full blocks before the chain's last token, which is never taken from the cache."""
        return max(0, (len(chain) - 1) // self.block_size)

    def _match(self, chain: TokenChain) -> tuple[list[Block], list[HostBlock], MissReason]:
        """Return the leading blocks that are cached on the device, those after them that are cached on the host, and
        why the block after these is not."""
        if not self.prefix_cache:
            return [], [], "disabled"
        count = self._cacheable(chain)
        index = self.index
        hit: list[Block] = []
        while (first := len(hit)) < count:  # twice as many keys each time: most of a new prompt's are not needed yet
            stop = min(2 * first + 1, count)
            keys, packed = chain.keys(stop), chain.packed(stop)
            for key, tokens in zip(keys[first:stop], packed[first:stop], strict=True):
                block = index.get(key)
                if block is None:
                    on_host, reason = self._match_host(chain, len(hit), count)
                    return hit, on_host, reason
                if block.tokens != tokens:
                    return hit, [], "tokens_differ"
                hit.append(block)
        return hit, [], "cold"

    def _match_host(self, chain: TokenChain, first: int, count: int) -> tuple[list[HostBlock], MissReason]:
        on_host: list[HostBlock] = []
        for i in range(first, count):
            keys, packed = chain.keys(i + 1), chain.packed(i + 1)
            # A block that is on the device as well needs no copy, and a key belongs to one device block only.
            found = None if self.host is None or keys[i] in self.index else self.host.blocks.get(keys[i])
            if found is None:
                return on_host, "evicted" if keys[i] in self._evicted else "cold"
            if found.tokens != packed[i]:
                return on_host, "tokens_differ"
            on_host.append(found)
        return on_host, "cold"

    def _allocate_restored(self, table: BlockTable, restored: Sequence[HostBlock], host: HostCache) -> None:
        """Allocate blocks for these, and order their content to be copied from the host."""
        host.hold(restored)  # before the allocation evicts blocks that may take their places
        self._allocate(table, len(restored))
        for block_id, found in zip(table.block_ids[-len(restored) :], restored, strict=True):
            block = self.blocks[block_id]
            block.key, block.tokens = found.key, found.tokens
            self.index[found.key] = block
            host.restore(found, block)

    def _allocate(self, table: BlockTable, count: int) -> None:
        """Append free blocks to the table, evicting cache entries if needed. Only this method allocates and evicts."""
        taken = self.free.take(count)
        self._evict([(block, key) for block in taken if (key := block.key) is not None])
        for block in taken:
            block.ref_count = 1
        table.block_ids.extend([block.block_id for block in taken])
        self._version += 1

    def _evict(self, entries: Sequence[tuple[Block, BlockKey]]) -> None:
        """Empty these cache entries."""
        index, host = self.index, self.host
        lost: list[BlockKey] = []
        for block, key in entries:
            del index[key]
            if host is None:
                lost.append(key)
            elif (gone := host.keep(block, key)) is not None and gone not in index:
                lost.append(gone)
            block.key, block.tokens = None, b""
        self._evicted.add(lost)
        self.counters.evictions += len(entries)


class RecentlyEvicted:
    """Remembers the keys of recently evicted blocks, to distinguish an evicted block from one that was never cached. It
    keeps two generations: when the younger one has `capacity` keys, it replaces the older one. At least the last
    `capacity` evictions are therefore known."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._younger: set[BlockKey] = set()
        self._older: set[BlockKey] = set()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._younger or key in self._older

    def add(self, keys: Sequence[BlockKey]) -> None:
        if len(self._younger) + len(keys) < self._capacity:
            self._younger.update(keys)
            return
        for key in keys:
            self._younger.add(key)
            if len(self._younger) == self._capacity:
                self._younger, self._older = set(), self._younger


class Reclaim:
    """Counts the blocks that would become free if tables were released one by one, without changing the pool."""

    def __init__(self, pool: BlockPool, keep: Iterable[Block] = ()) -> None:
        """`keep` are blocks that are taken again immediately and therefore do not count as freed."""
        self._blocks = pool.blocks
        self._kept = {block.block_id for block in keep}
        self._holders: dict[int, int] = {}
        self.num_blocks = 0  # blocks that would become free

    def gain(self, table: BlockTable) -> int:
        """Return how many more blocks would be free if this table were released as well."""
        blocks, holders, kept = self._blocks, self._holders, self._kept
        return sum(
            1
            for block_id in table.block_ids
            if blocks[block_id].ref_count == holders.get(block_id, 0) + 1 and block_id not in kept
        )

    def add(self, table: BlockTable) -> None:
        self.num_blocks += self.gain(table)
        for block_id in table.block_ids:
            self._holders[block_id] = self._holders.get(block_id, 0) + 1


def check_pool(
    blocks: Sequence[Block], free: FreeList, index: dict[BlockKey, Block], tables: Collection[BlockTable]
) -> None:
    listed = _check_free_list(free, len(blocks))
    used = _check_reference_counts(blocks, tables)
    garbage = blocks[GARBAGE]
    if garbage.ref_count or garbage.key is not None or garbage.next is not garbage:
        raise InvariantViolation("the reserved block 0 is in use, cached or free")
    if len(listed) + used != len(blocks) - 1:
        raise InvariantViolation(f"{len(listed)} free + {used} used != {len(blocks) - 1} blocks")
    _check_index(blocks, index)


def _check_free_list(free: FreeList, most: int) -> set[int]:
    """Check that blocks are linked both ways, unique and unused, empty ones before cache entries. Return their ids."""
    listed: set[int] = set()
    seen_keyed = False
    previous = ring = free.ring
    block = ring.next
    while block is not ring:
        if block.block_id in listed or len(listed) > most:
            raise InvariantViolation(f"{block} is in the free list twice")
        if block.prev is not previous:
            raise InvariantViolation(f"{block} is not linked back to {previous}")
        if block.ref_count != 0:
            raise InvariantViolation(f"{block} is in the free list but in use")
        if seen_keyed and block.key is None:
            raise InvariantViolation(f"{block} is empty but behind cache entries in the free list")
        seen_keyed = block.key is not None
        listed.add(block.block_id)
        previous, block = block, block.next
    if ring.prev is not previous:
        raise InvariantViolation(f"the ring of the free list is not linked back to {previous}")
    if len(listed) != len(free):
        raise InvariantViolation(f"the free list holds {len(listed)} blocks but counts {len(free)}")
    return listed


def _check_reference_counts(blocks: Sequence[Block], tables: Iterable[BlockTable]) -> int:
    """Check that each block's count equals the number of tables that hold it. Return the number of blocks in use."""
    holders = [0] * len(blocks)
    for table in tables:
        if table.released:
            raise InvariantViolation("a released table is still live")
        if len(set(table.block_ids)) != len(table.block_ids):
            raise InvariantViolation("a table holds a block twice")
        for block_id in table.block_ids:
            holders[block_id] += 1
    if [block.ref_count for block in blocks] != holders:
        block, count = next((b, count) for b, count in zip(blocks, holders, strict=True) if b.ref_count != count)
        raise InvariantViolation(f"the reference count of {block} is wrong: {count} tables hold the block")
    return len(holders) - holders.count(0)


def _check_index(blocks: Sequence[Block], index: dict[BlockKey, Block]) -> None:
    if [block.key for block in index.values()] != list(index):
        stray = next(block for key, block in index.items() if block.key != key)
        raise InvariantViolation(f"{stray} is indexed under the wrong key")
    keyed = len(blocks) - [block.key for block in blocks].count(None)
    if keyed != len(index):
        raise InvariantViolation(f"{keyed} blocks have a key, but {len(index)} are indexed")
