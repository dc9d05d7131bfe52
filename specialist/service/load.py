"""How busy the replica is: written by the engine's thread, read by everybody else."""

from typing import NamedTuple

from admission.forecast import Desk, EstimateErrors
from kvpool import BlockPool
from specialist.scheduler import Scheduler
from specialist.service.meter import Meter, Rates


class Seats(NamedTuple):
    """How many the replica takes."""

    running: int
    waiting: int

    @property
    def total(self) -> int:
        return self.running + self.waiting


class DeskLoad(NamedTuple):
    """How the replica looks from its desk."""

    refusing: bool
    shadows: int
    usual_wait: float | None
    errors: EstimateErrors | None


def desk_load_of(desk: Desk, now: float) -> DeskLoad:
    return DeskLoad(desk.refusing(now), desk.num_shadows, desk.usual_wait(now), desk.error())


class Load(NamedTuple):
    waiting: int
    running: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    preempted_at: float | None
    """When somebody last gave way."""
    times_preempted: int
    rates: Rates
    prompt_tokens: int
    """Since the start, as the two below: of requests that began to run."""
    cache_hit_tokens: int
    evicted_blocks: int


def load_of(scheduler: Scheduler, meter: Meter) -> Load:
    """Only between steps, by whoever takes them."""
    pool = scheduler.pool
    cached = _num_cached(pool)
    return Load(
        waiting=len(scheduler.waiting) + sum(seq not in scheduler.running for seq in scheduler.ledger.aside),
        running=len(scheduler.running),
        total_blocks=pool.capacity,
        free_blocks=pool.num_free - cached,
        cached_blocks=cached,
        used_blocks=pool.num_used,
        preempted_at=meter.preempted_at,
        times_preempted=meter.times_preempted,
        rates=meter.rates(),
        prompt_tokens=meter.prompt_tokens,
        cache_hit_tokens=meter.cache_hit_tokens,
        evicted_blocks=pool.counters.evictions,
    )


def _num_cached(pool: BlockPool) -> int:
    return sum(1 for block in pool.index.values() if block.ref_count == 0)
