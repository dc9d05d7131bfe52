"""The simulated KV cache: one number a token slot, and poison where nothing was written."""

from kvpool import GARBAGE, BlockTable


class PoisonedRead(RuntimeError):
    """A slot was read that holds nothing: a block was handed out, shared or kept by mistake."""


class SimMemory:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._poison: list[int | None] = [None] * block_size
        self._cells: list[int | None] = [None] * (num_blocks * block_size)

    def context(self, table: BlockTable, stop: int) -> int:
        """The sum of the cells at positions [0, stop), read through the table."""
        size, cells = self.block_size, self._cells
        full, rest = divmod(stop, size)
        total = 0
        try:
            for block_id in table.block_ids[:full]:
                total += sum(cells[block_id * size : (block_id + 1) * size])  # type: ignore[arg-type]
            if rest:
                first = table.block_ids[full] * size
                total += sum(cells[first : first + rest])  # type: ignore[arg-type]
        except TypeError as error:
            raise PoisonedRead(f"a slot below position {stop} holds nothing") from error
        return total

    def write(self, table: BlockTable, position: int, value: int | None) -> None:
        size = self.block_size
        self._cells[table.block_ids[position // size] * size + position % size] = value

    def write_padding(self, value: int) -> None:
        """What the padding rows of a real step do."""
        self._cells[GARBAGE * self.block_size] = value

    def read_block(self, block_id: int) -> tuple[int | None, ...]:
        return tuple(self._cells[block_id * self.block_size : (block_id + 1) * self.block_size])

    def is_written(self, block_id: int) -> bool:
        """All of it."""
        return None not in self._cells[block_id * self.block_size : (block_id + 1) * self.block_size]

    def write_block(self, block_id: int, values: tuple[int | None, ...]) -> None:
        self._cells[block_id * self.block_size : (block_id + 1) * self.block_size] = values

    def poison(self, block_id: int) -> None:
        self._cells[block_id * self.block_size : (block_id + 1) * self.block_size] = self._poison
