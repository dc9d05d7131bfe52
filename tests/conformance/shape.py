"""Replica settings that the tests vary, and the engine under test."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvpool import BlockPool
from octet.clock import Clock
from specialist.scheduling.ledger import Hybrid, PureAttention
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.step import FixedBudget
from specialist.server.replica import AssembledReplica


@dataclass(frozen=True, slots=True)
class Shape:
    """Replica settings that must not change an answer."""

    num_blocks: int = 64
    """The number of blocks, not counting the padding block."""
    block_size: int = 4
    prefix_cache: bool = True
    chunk_tokens: int = 16
    max_running: int = 8


class EngineUnderTest(NamedTuple):
    """A replica that runs the engine under test, and what the tests need to know about it."""

    replica: AssembledReplica
    poison: Callable[[Iterable[int]], None]
    """Fills these blocks with values that must not be read."""
    stacks: tuple[tuple[str, ...], ...]
    """Adapter stacks, by digest, that requests may name. They include the empty stack, which selects the bare model."""
    vocab_size: int
    """Prompts may contain token ids below this number."""
    tells_logprobs: bool


Factory = Callable[[Shape, Clock], EngineUnderTest]


def reshaped(replica: AssembledReplica, shape: Shape) -> AssembledReplica:
    """Return the replica with a new pool and scheduler for this shape. The shape must have the same number and size of
    blocks as the replica."""
    pool = BlockPool(shape.num_blocks + 1, shape.block_size, prefix_cache=shape.prefix_cache)
    config = SchedulerConfig(
        replica.lane,
        kv_dtype=replica.scheduler.config.kv_dtype,
        max_running=shape.max_running,
        max_step_tokens=shape.chunk_tokens,
    )
    old = replica.scheduler.states
    states = Hybrid(pool, old.new_state, old.max_snapshot_bytes) if isinstance(old, Hybrid) else PureAttention(pool)
    budget = FixedBudget(shape.chunk_tokens)
    scheduler = Scheduler(pool, config, replica.clock, budget=budget, states=states)
    return replace(replica, scheduler=scheduler, context=min(replica.context, pool.num_slots))
