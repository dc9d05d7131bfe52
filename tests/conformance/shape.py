"""The shapes of replicas under test."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvpool import BlockPool
from octet.clock import Clock
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.step import FixedBudget
from specialist.server.replica import AssembledReplica


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings that must not change an answer."""

    num_blocks: int = 64
    """The number of blocks without the padding block."""
    block_size: int = 4
    prefix_cache: bool = True
    chunk_tokens: int = 16
    max_running: int = 8


class Subject(NamedTuple):
    """A replica with the engine under test, and its properties."""

    replica: AssembledReplica
    poison: Callable[[Iterable[int]], None]
    """Fills these blocks with values that must not be read."""
    stacks: tuple[tuple[str, ...], ...]
    """Adapter stacks that requests may name, by digest. The empty stack of the bare model is one of them."""
    vocab_size: int
    """Prompts may contain token ids below this number."""
    tells_logprobs: bool


Factory = Callable[[Shape, Clock], Subject]


def reshaped(replica: AssembledReplica, shape: Shape) -> AssembledReplica:
    """Return the same engine with a scheduler of this shape; the blocks must be the same."""
    pool = BlockPool(shape.num_blocks + 1, shape.block_size, prefix_cache=shape.prefix_cache)
    config = SchedulerConfig(
        replica.lane,
        kv_dtype=replica.scheduler.config.kv_dtype,
        max_running=shape.max_running,
        max_step_tokens=shape.chunk_tokens,
    )
    scheduler = Scheduler(pool, config, replica.clock, budget=FixedBudget(shape.chunk_tokens))
    return replace(replica, scheduler=scheduler, context=min(replica.context, pool.num_slots))
