"""The integers of a launched decode step, and how they reach the device."""

from collections.abc import Sequence

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
        self._staged = [_Staged(torch.zeros(size, dtype=torch.int32, pin_memory=pinned)) for _ in range(_RING)]
        self._turn = 0
        self._written = _WrittenTables(most_blocks)
        self._all = torch.zeros(size, dtype=torch.int32, device=device)
        self.widths = self._all[:1]
        columns = self._all[_HEADER:_TABLES_AT].view(-1, MOST_ROWS)
        self.tokens, self.sources, self.positions = columns[:_INTEGERS]
        self.temperatures, self.uniforms = columns[_INTEGERS:].view(torch.float32)
        self.tables = self._all[_TABLES_AT:]

    def send(self, rows: DecodeRows, bucket: int, block_size: int) -> None:
        """Copy the rows to the device, followed by padding rows that use block 0."""
        self._turn = (self._turn + 1) % _RING
        staged, count = self._staged[self._turn], rows.count
        used = [position // block_size + 1 for position in rows.positions]
        width = max(used)
        staged.numbers[0] = width
        staged.integers[:, :count] = rows.tokens, rows.sources, rows.positions
        staged.integers[:, count:bucket] = _PADDING
        staged.floats[:, :count] = rows.temperatures, rows.uniforms
        staged.floats[:, count:bucket] = 0
        stop = _TABLES_AT + bucket * width
        tables = staged.numbers[_TABLES_AT:stop].reshape(bucket, width)
        tables[:count] = self._written.update(rows.blocks, used)[:, :width]
        tables[count:] = 0
        self._all[:stop].copy_(staged.memory[:stop], non_blocking=True)


_PADDING = np.array([[0], [-1], [0]], np.int32)  # token, source and position of a padding row


class _Staged:
    """One of the buffers on the host, and its parts."""

    def __init__(self, memory: Tensor) -> None:
        self.memory, self.numbers = memory, memory.numpy()
        columns = self.numbers[_HEADER:_TABLES_AT].reshape(-1, MOST_ROWS)
        self.integers, self.floats = columns[:_INTEGERS], columns[_INTEGERS:].view(np.float32)


class _WrittenTables:
    """The block tables of the rows that were sent last. A row that holds the same blocks as before is written only as
    far as it has grown: blocks are only ever appended."""

    def __init__(self, most_blocks: int) -> None:
        self._tables = np.zeros((MOST_ROWS, most_blocks), np.int32)
        self._blocks: list[Sequence[int]] = [()] * MOST_ROWS  # those that each row was written from
        self._used = [0] * MOST_ROWS  # how many of them

    def update(self, blocks: Sequence[Sequence[int]], used: Sequence[int]) -> NDArray[np.int32]:
        """Return the tables of these rows, of each of which the first `used` blocks count."""
        held, lengths = self._blocks, self._used
        for row, (mine, stop) in enumerate(zip(blocks, used, strict=True)):
            start = lengths[row] if mine is held[row] else 0
            if start < stop:
                self._tables[row, start:stop] = mine[start:stop]
                held[row], lengths[row] = mine, stop
        return self._tables[: len(blocks)]
