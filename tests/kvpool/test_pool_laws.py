"""The pool agrees with the naive pool after every operation, and its invariants hold."""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvpool import (
    AdmissionPlan,
    BlockCopy,
    BlockKey,
    BlockPool,
    BlockTable,
    HostCache,
    PoolExhausted,
    Reclaim,
    StalePlan,
    TokenChain,
    chain_root,
)
from tests.kvpool.naive_pool import Content, Forecast, NaiveHost, NaivePool
from tests.kvpool.prompts import OWNERS, Prompt, few_tokens, prompts
from tests.kvpool.snapshot import snapshot

EVERYTHING = 100
"""Larger than the number of tokens of any sequence."""

places = st.integers(0, 20)
progress = st.sampled_from([EVERYTHING, EVERYTHING, EVERYTHING, 0, 1, 3, 5, 8])

T = TypeVar("T")


def pick(items: list[T], which: int) -> T:
    return items[which % len(items)]


@dataclass(eq=False)
class Sequence:
    handle: int
    owner: int
    tokens: tuple[int, ...]
    chain: TokenChain
    table: BlockTable


@dataclass(frozen=True)
class PlannedAdmission:
    plan: AdmissionPlan
    seen: object
    """Snapshot of the pool for which the plan was made."""


class Memory:
    """What the blocks of the device and the places on the host hold. A copy may fail after some blocks."""

    def __init__(self) -> None:
        self.blocks: dict[int, object] = {}
        self.places: dict[int, object] = {}
        self.copies_until_failure = EVERYTHING

    def spill(self, copies: Iterable[BlockCopy]) -> None:
        for block_id, place in copies:
            self._count()
            self.places[place] = self.blocks[block_id]

    def restore(self, copies: Iterable[BlockCopy]) -> None:
        for block_id, place in copies:
            self._count()
            self.blocks[block_id] = self.places[place]

    def _count(self) -> None:
        if self.copies_until_failure == 0:
            raise CopyFailed
        self.copies_until_failure -= 1


class CopyFailed(Exception):
    pass


class PoolLaws(RuleBasedStateMachine):
    """Applies the same operations to a pool and to a naive pool, and compares them after each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Sequence] = []
        self.released: list[Sequence] = []
        self.plans: deque[PlannedAdmission] = deque(maxlen=3)
        self.handles = count()

    @initialize(
        num_blocks=st.sampled_from([12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2]),
        block_size=st.integers(1, 4),
        prefix_cache=st.sampled_from([True] * 4 + [False]),
        host_capacity=st.sampled_from([0, 1, 2, 4, 8, 30]),
    )
    def make_pools(self, num_blocks: int, block_size: int, prefix_cache: bool, host_capacity: int) -> None:
        host_capacity *= prefix_cache
        self.memory = Memory()
        host = HostCache(host_capacity, self.memory) if host_capacity else None
        self.pool = BlockPool(num_blocks, block_size, prefix_cache=prefix_cache, host=host)
        self.naive = NaivePool(num_blocks - 1, block_size, prefix_cache, NaiveHost(host_capacity))
        self.roots = [chain_root(lane, salt, "float16", block_size) for lane, salt in OWNERS]

    @rule(prompt=prompts(), num_computed=progress)
    def admit(self, prompt: Prompt, num_computed: int) -> None:
        chain = self._chain_of(prompt)
        plan, forecast = self._plan(chain, prompt)
        if plan.shortage:
            self._assert_refused(PoolExhausted, lambda: self.pool.apply(plan))
            self._release(self.live[:1])
            return
        sequence = Sequence(next(self.handles), prompt.owner, prompt.tokens, chain, self.pool.apply(plan))
        self.naive.admit(sequence.handle, forecast)
        self.live.append(sequence)
        self._register(sequence, num_computed)

    @precondition(lambda self: self.live)
    @rule(which=places, more=few_tokens)
    def fork(self, which: int, more: list[int]) -> None:
        """Admit a continuation of a live sequence, so that both share blocks."""
        parent = pick(self.live, which)
        text = parent.tokens + tuple(more)
        self.admit(Prompt(parent.owner, text, num_tokens=len(text)), EVERYTHING)

    @precondition(lambda self: self.live)
    @rule(which=places, num_more=st.integers(-3, 12))
    def grow(self, which: int, num_more: int) -> None:
        sequence = pick(self.live, which)
        num_tokens = max(0, sequence.table.num_slots + num_more)
        needed = self.naive.growth(sequence.handle, num_tokens)
        assert self.pool.blocks_short(sequence.table, num_tokens) == needed
        if needed > len(self.naive.free):
            self._assert_refused(PoolExhausted, lambda: self.pool.grow(sequence.table, num_tokens))
        else:
            self.pool.grow(sequence.table, num_tokens)
            self.naive.grow(sequence.handle, num_tokens)

    @precondition(lambda self: self.live)
    @rule(which=places, more=few_tokens)
    def append(self, which: int, more: list[int]) -> None:
        sequence = pick(self.live, which)
        for token in more:
            sequence.chain.extend([token])
        sequence.tokens += tuple(more)

    @precondition(lambda self: self.live)
    @rule(which=places, num_computed=progress)
    def register(self, which: int, num_computed: int) -> None:
        self._register(pick(self.live, which), num_computed)

    @precondition(lambda self: self.live)
    @rule(which=places)
    def release(self, which: int) -> None:
        self._release([pick(self.live, which)])

    @precondition(lambda self: self.pool.host is not None)
    @rule(num_copies=st.sampled_from([0, 0, 1, 2, 3, 5, EVERYTHING]))
    def copy(self, num_copies: int) -> None:
        """Make the ordered copies, of which only so many succeed."""
        self.memory.copies_until_failure = num_copies
        with suppress(CopyFailed):
            self._copy()
        self.memory.copies_until_failure = EVERYTHING

    @precondition(lambda self: self.released)
    @rule(which=places)
    def release_twice(self, which: int) -> None:
        before = snapshot(self.pool)
        self.pool.release(self.released.pop(which % len(self.released)).table)
        assert snapshot(self.pool) == before

    @precondition(lambda self: len(self.live) > 1)
    @rule(prompt=prompts(), spare=places)
    def reclaim(self, prompt: Prompt, spare: int) -> None:
        plan, forecast = self._plan(self._chain_of(prompt), prompt)
        spared = self.live[: spare % len(self.live)]
        victims = [sequence for sequence in self.live if sequence not in spared]
        reclaim = Reclaim(self.pool, keep=plan.hit)
        for victim in victims:
            reclaim.add(victim.table)
        assert reclaim.num_blocks == self.naive.reclaimable([victim.handle for victim in victims], forecast.hit)

    @invariant()
    def is_sound(self) -> None:
        self.pool.check()

    @invariant()
    def holds_the_same_blocks(self) -> None:
        assert [block.block_id for block in self.pool.free] == self.naive.free
        assert self.pool.num_free == len(self.naive.free)
        assert self.pool.num_used == self.naive.capacity - len(self.naive.free)
        for sequence in self.live:
            expected = self.naive.tables[sequence.handle]
            assert list(sequence.table.block_ids) == expected.blocks
            assert sequence.table.num_registered == expected.num_settled

    @invariant()
    def caches_the_same_content(self) -> None:
        keyed = {block.block_id: block.key for block in self.pool.blocks if block.key is not None}
        assert keyed == {block: self._key_of(content) for block, content in self.naive.cached.items()}
        evicted = [content for generation in self.naive.evicted for content in generation]
        remembered = [content for generation in self.naive.evicted[-2:] for content in generation]
        assert all((self._key_of(content) in self.pool._evicted) == (content in remembered) for content in evicted)

    @invariant()
    def keeps_the_same_content_on_the_host(self) -> None:
        host, naive = self.pool.host, self.naive.host
        if host is None:
            return
        assert [found.key for found in host._droppable.values()] == [self._key_of(each) for each in naive.contents]
        held = {block: self._key_of(content) for block, content in naive.held.items()}
        assert {block: found.key for block, found in host.to_restore.items()} == held
        assert host.num_dropped == naive.dropped
        for content in (*naive.contents, *naive.held.values()):
            place = host.blocks[self._key_of(content)].place
            source = host.to_spill.get(place)
            assert (self.memory.places[place] if source is None else self.memory.blocks[source]) == content

    @invariant()
    def cached_blocks_have_their_content(self) -> None:
        for block, content in self.naive.cached.items():
            assert block in self.naive.host.held or self.memory.blocks[block] == content

    @invariant()
    def counts_the_same(self) -> None:
        counters = self.pool.counters
        assert (counters.hits, counters.evictions) == (self.naive.hits, self.naive.evictions)
        assert counters.misses == {reason: self.naive.misses.get(reason, 0) for reason in counters.misses}

    @invariant()
    def refuses_stale_plans(self) -> None:
        """The pool must refuse a plan once the pool's state has changed. Each call adds a new plan for later calls to
        check."""
        now = snapshot(self.pool)
        for planned in self.plans:
            if planned.seen != now:
                self._assert_refused(StalePlan, partial(self.pool.apply, planned.plan))
        self.plans.append(PlannedAdmission(self.pool.admit(TokenChain(self.roots[0], self.pool.block_size), 0), now))

    def teardown(self) -> None:
        self._release(list(self.live))
        if hasattr(self, "pool"):
            self.pool.check()
            assert self.pool.num_free == self.pool.capacity

    def _register(self, sequence: Sequence, num_computed: int) -> None:
        num_computed = min(num_computed, len(sequence.tokens), sequence.table.num_slots)
        self._copy()
        self._write(sequence, num_computed)
        self.pool.register(sequence.table, sequence.chain, num_computed)
        self.naive.register(sequence.handle, sequence.owner, sequence.tokens, num_computed)

    def _copy(self) -> None:
        if self.pool.host is not None:
            self.pool.host.copy_pending()
            self.naive.host.copied()

    def _write(self, sequence: Sequence, num_computed: int) -> None:
        """Write to all blocks of the table that are not registered, as a step may."""
        table, size = sequence.table, self.pool.block_size
        for i in range(table.num_registered, len(table)):
            stop = (i + 1) * size
            full = stop <= num_computed
            self.memory.blocks[table.block_ids[i]] = (sequence.owner, sequence.tokens[:stop]) if full else "unfinished"

    def _release(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.pool.release(sequence.table)
            self.naive.release(sequence.handle)
            self.live.remove(sequence)
            self.released.append(sequence)

    def _chain_of(self, prompt: Prompt) -> TokenChain:
        return TokenChain(self.roots[prompt.owner], self.pool.block_size, prompt.tokens)

    def _key_of(self, content: Content) -> BlockKey:
        owner, tokens = content
        chain = TokenChain(self.roots[owner], self.pool.block_size, tokens)
        return chain.keys(len(tokens) // self.pool.block_size)[-1]

    def _plan(self, chain: TokenChain, prompt: Prompt) -> tuple[AdmissionPlan, Forecast]:
        """Return the pool's plan and the naive pool's forecast, which must agree. Planning must not change the pool."""
        before = snapshot(self.pool)
        resumable = None if prompt.depths is None else self._keys_at(chain, prompt.depths).__contains__
        plan = self.pool.admit(chain, prompt.num_tokens, headroom=prompt.headroom, resumable=resumable)
        assert self.pool.admit(chain, prompt.num_tokens, headroom=prompt.headroom, resumable=resumable) == plan
        assert snapshot(self.pool) == before
        self.plans.append(PlannedAdmission(plan, before))
        forecast = self.naive.forecast(prompt.owner, prompt.tokens, prompt.num_tokens, prompt.headroom, prompt.depths)
        self._assert_foreseen(plan, forecast)
        return plan, forecast

    def _keys_at(self, chain: TokenChain, depths: frozenset[int]) -> set[BlockKey]:
        num_full = len(chain) // self.pool.block_size
        return {key for depth, key in enumerate(chain.keys(num_full), start=1) if depth in depths}

    def _assert_foreseen(self, plan: AdmissionPlan, forecast: Forecast) -> None:
        assert [block.block_id for block in plan.hit] == forecast.hit
        assert [found.key for found in plan.restored] == [self._key_of(content) for content in forecast.restored]
        assert plan.num_hit_tokens == (len(forecast.hit) + len(forecast.restored)) * self.naive.block_size
        assert plan.num_cached == forecast.num_cached
        assert plan.misses == forecast.misses
        assert plan.shortage == forecast.shortage

    def _assert_refused(self, error: type[Exception], change: Callable[[], object]) -> None:
        before = snapshot(self.pool)
        with pytest.raises(error):
            change()
        assert snapshot(self.pool) == before


TestPoolLaws = PoolLaws.TestCase
TestPoolLaws.settings = settings(max_examples=max(60, settings().max_examples), stateful_step_count=50)
