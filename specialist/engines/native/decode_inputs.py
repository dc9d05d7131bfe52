"""The integers of a launched decode step, and how they reach the device."""

from collections.abc import Sequence
from operator import is_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.engines.native.gpu_engine import DecodeRows

MOST_ROWS = 128  # the most rows of a launched step
_RING = 4  # buffers on the host; a buffer is used again after the step that used it has ended
_HEADER, _INTEGERS, _FLOATS = 16, 3, 2  # the header, and how many columns of each kind follow
_TABLES_AT = _HEADER + (_INTEGERS + _FLOATS) * MOST_ROWS


class DecodeInputs:
    """The integers of a decode step, in one piece of memory on the host and one on the device."""

    def __init__(self, most_blocks: int, device: torch.device) -> None:
        size = _TABLES_AT + MOST_ROWS * most_blocks
        pinned = device.type == "cuda"
        self._all = torch.zeros(size, dtype=torch.int32, device=device)
        memory = [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(_RING)]
        self._staged = [_Staged(each, self._all) for each in memory]
        self._turn = 0
        self._columns = _WrittenColumns()
        self._tables = _WrittenTables(most_blocks)
        self.widths = self._all[:1]
        columns = self._all[_HEADER:_TABLES_AT].view(-1, MOST_ROWS)
        self.tokens, self.sources, self.positions = columns[:_INTEGERS]
        self.temperatures, self.uniforms = columns[_INTEGERS:].view(torch.float32)
        self.tables = self._all[_TABLES_AT:]

    def send(self, rows: DecodeRows, bucket: int, block_size: int) -> None:
        """Copy the rows to the device, followed by padding rows that use block 0."""
        self._turn = (self._turn + 1) % _RING
        staged, count = self._staged[self._turn], rows.num_rows
        used = [position // block_size + 1 for position in rows.positions]
        width = max(used)
        staged.resize(bucket, width)
        staged.numbers[0] = width
        staged.columns[:] = self._columns.update(rows, bucket)
        staged.tables[:count] = self._tables.update(rows.blocks, used)[:count, :width]
        staged.tables[count:] = 0
        staged.target.copy_(staged.source, non_blocking=True)


class _Staged:
    """One of the buffers on the host, and its parts."""

    def __init__(self, memory: Tensor, device_memory: Tensor) -> None:
        self._memory, self._device_memory = memory, device_memory
        self.numbers: NDArray[np.int32] = memory.numpy()
        self.columns = self.numbers[_HEADER:_TABLES_AT]
        self._shape = 0, 0
        self.resize(1, 1)

    def resize(self, bucket: int, width: int) -> None:
        """Let it have tables of so many rows and blocks."""
        if self._shape == (bucket, width):
            return
        self._shape = bucket, width
        stop = _TABLES_AT + bucket * width
        self.tables = self.numbers[_TABLES_AT:stop].reshape(bucket, width)
        self.source, self.target = self._memory[:stop], self._device_memory[:stop]


_PADDING = 0, -1, 0, 0.0, 0.0  # token, source, position, temperature and uniform number of a padding row


class _WrittenColumns:
    """The columns of the rows that were sent last, and of padding rows. A column that is the same object as before is
    not written again."""

    def __init__(self) -> None:
        self._numbers = np.zeros((_INTEGERS + _FLOATS) * MOST_ROWS, np.int32)
        columns = self._numbers.reshape(-1, MOST_ROWS)
        self._columns = [*columns[:_INTEGERS], *columns[_INTEGERS:].view(np.float32)]
        self._sizes = 0, 0
        self._held: tuple[object, ...] = _PADDING

    def update(self, rows: DecodeRows, bucket: int) -> NDArray[np.int32]:
        count = rows.num_rows
        if self._sizes != (count, bucket):
            self._sizes, self._held = (count, bucket), _PADDING
            for column, value in zip(self._columns, _PADDING, strict=True):
                column[count:bucket] = value
        columns = rows.tokens, rows.sources, rows.positions, rows.temperatures, rows.uniforms
        for column, values, held in zip(self._columns, columns, self._held, strict=True):
            if values is not held:
                column[:count] = values
        self._held = columns
        return self._numbers


class _WrittenTables:
    """The block tables of the rows that were sent last. A row that holds the same blocks as before is written only as
    far as it has grown: blocks are only ever appended."""

    def __init__(self, most_blocks: int) -> None:
        self._tables = np.zeros((MOST_ROWS, most_blocks), np.int32)
        self._blocks: list[Sequence[int]] = [()] * MOST_ROWS  # those that each row was written from
        self._used = [0] * MOST_ROWS  # how many of them
        self._sent: tuple[Sequence[Sequence[int]], Sequence[int]] = (), ()

    def update(self, blocks: Sequence[Sequence[int]], used: Sequence[int]) -> NDArray[np.int32]:
        """Return the tables of these rows, of each of which the first `used` blocks count."""
        sent, self._sent = self._sent, (blocks, used)
        if used == sent[1] and all(map(is_, blocks, sent[0])):
            return self._tables
        held, lengths = self._blocks, self._used
        for row, (mine, stop) in enumerate(zip(blocks, used, strict=True)):
            start = lengths[row] if mine is held[row] else 0
            if start < stop:
                self._tables[row, start:stop] = mine[start:stop]
                held[row], lengths[row] = mine, stop
        return self._tables
