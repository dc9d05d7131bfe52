"""Comparable snapshots of a pool's state."""

from dataclasses import replace

from kvpool import BlockPool


def snapshot(pool: BlockPool) -> object:
    """Return the pool's state, without its version and its ordered copies, in a form that can be compared."""
    return (
        [block.block_id for block in pool.free],
        [(block.ref_count, block.key, block.tokens) for block in pool.blocks],
        {key: block.block_id for key, block in pool.index.items()},
        [tuple(table.block_ids) for table in pool.tables.values()],
        (set(pool._evicted._younger), set(pool._evicted._older)),
        replace(pool.counters, misses=dict(pool.counters.misses)),
        None if pool.host is None else dict(pool.host.blocks),
    )
