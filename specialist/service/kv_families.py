"""The KV pool and what is saved beside it."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from octet.telemetry.families import counter, gauge
from specialist.scheduler import Scheduler
from specialist.states import Hybrid


def kv_families(specialist: str, scheduler: Scheduler) -> Iterator[Metric]:
    """From any thread: counts are only read."""
    pool = scheduler.pool
    counters, states = pool.counters, scheduler.states
    ours = ("specialist",)
    about = "Tokens that one block of the KV pool holds."
    yield gauge("octet_replica_kv_block_tokens", about, ours, [((specialist,), pool.block_size)])
    yield counter(
        "octet_replica_kv_block_misses_total",
        "Blocks of prompts that were not found: cold, evicted, tokens_differ, no_boundary, disabled.",
        ("specialist", "reason"),
        (((specialist, reason), num) for reason, num in counters.misses.items()),
    )
    for name, what, num in (
        ("hits", "Blocks of prompts that were found in the cache.", counters.hits),
        ("evictions", "Cached blocks that made room for others.", counters.evictions),
        ("reads", "Blocks that steps gathered.", counters.reads),
        ("writes", "Blocks that steps wrote tokens into.", counters.writes),
    ):
        yield counter(f"octet_replica_kv_block_{name}_total", what, ours, [((specialist,), num)])
    saved = states.num_snapshot_bytes if isinstance(states, Hybrid) else 0
    about = "Saved states of recurrent layers; 0 for a model without any."
    yield gauge("octet_replica_snapshot_bytes", about, ours, [((specialist,), saved)])
