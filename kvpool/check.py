"""The pool's invariants as code. Tests run this after every event."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from kvpool.block import GARBAGE, Block, BlockKey, BlockTable, InvariantViolation

if TYPE_CHECKING:
    from kvpool.pool import FreeList


def check_pool(
    blocks: Sequence[Block], free: "FreeList", index: dict[BlockKey, Block], tables: Collection[BlockTable]
) -> None:
    listed = _check_free_list(free, len(blocks))
    used = _check_reference_counts(blocks, tables)
    _check_garbage_bin(blocks[GARBAGE])
    if len(listed) + used != len(blocks) - 1:
        raise InvariantViolation(f"{len(listed)} free + {used} used != {len(blocks) - 1} blocks")
    _check_index(blocks, index)


def _check_free_list(free: "FreeList", most: int) -> set[int]:
    """Check that blocks are linked both ways, unique and unused, with empty blocks before cache entries."""
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
            raise InvariantViolation(f"{block} is free and in use")
        if seen_keyed and block.key is None:
            raise InvariantViolation(f"{block} is empty but behind cache entries")
        seen_keyed = block.key is not None
        listed.add(block.block_id)
        previous, block = block, block.next
    if ring.prev is not previous:
        raise InvariantViolation(f"the ring is not linked back to {previous}")
    if len(listed) != len(free):
        raise InvariantViolation(f"the free list holds {len(listed)} blocks and counts {len(free)}")
    return listed


def _check_reference_counts(blocks: Sequence[Block], tables: Iterable[BlockTable]) -> int:
    """Return the number of blocks in use."""
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
        raise InvariantViolation(f"{block} is held by {count} tables")
    return len(holders) - holders.count(0)


def _check_garbage_bin(block: Block) -> None:
    if block.ref_count or block.key is not None or block.next is not block:
        raise InvariantViolation("the reserved block 0 is in use, cached or free")


def _check_index(blocks: Sequence[Block], index: dict[BlockKey, Block]) -> None:
    if [block.key for block in index.values()] != list(index):
        stray = next(block for key, block in index.items() if block.key != key)
        raise InvariantViolation(f"{stray} is indexed under another key")
    keyed = len(blocks) - [block.key for block in blocks].count(None)
    if keyed != len(index):
        raise InvariantViolation(f"{keyed} blocks have a key, but {len(index)} are indexed")
