"""What releasing several tables at once would free, when they share blocks with each other and with others."""

from collections.abc import Iterable

from kvpool.block import Block
from kvpool.pool import BlockPool
from kvpool.table import BlockTable


class Reclaim:
    """Counts table by table, changing nothing in the pool."""

    def __init__(self, pool: BlockPool, keep: Iterable[Block] = ()) -> None:
        """`keep`: blocks that will be taken at once and so do not count as freed."""
        self._blocks = pool.blocks
        self._kept = {block.block_id for block in keep}
        self._holders: dict[int, int] = {}
        self.num_blocks = 0
        """Blocks that would come free."""

    def gain(self, table: BlockTable) -> int:
        """How many more would come free if this table were released as well."""
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
