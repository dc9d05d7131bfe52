"""The integers of a launched decode step, and how they reach the device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specialist.engines.native.gpu_engine import DecodeRow

MOST_ROWS = 128  # the most rows of a launched step
_RING = 4  # buffers on the host; a buffer is used again after the step that used it has ended


class DecodeInputs:
    """The integers of a decode step, in one piece of memory on the host and one on the device."""

    _HEADER = 16

    def __init__(self, most_blocks: int, device: torch.device) -> None:
        self._tables_at = self._HEADER + 5 * MOST_ROWS
        size = self._tables_at + MOST_ROWS * most_blocks
        self._staged = [torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda") for _ in range(_RING)]
        self._turn = 0
        self._all = torch.zeros(size, dtype=torch.int32, device=device)
        self.widths = self._all[:1]
        parts = [self._part(self._all, index) for index in range(5)]
        self.tokens, self.sources, self.positions = parts[:3]
        self.temperatures, self.uniforms = (part.view(torch.float32) for part in parts[3:])
        self.tables = self._all[self._tables_at :]

    def _part(self, whole: Tensor, index: int) -> Tensor:
        start = self._HEADER + index * MOST_ROWS
        return whole[start : start + MOST_ROWS]

    def send(self, rows: Sequence[DecodeRow], bucket: int, block_size: int) -> None:
        """Copy the rows to the device, followed by padding rows that use block 0."""
        self._turn = (self._turn + 1) % _RING
        staged = self._staged[self._turn]
        numbers = staged.numpy()
        count = len(rows)
        counts = [row.position // block_size + 1 for row in rows]
        width = max(counts)
        numbers[0] = width
        fields = zip(*((row.token, row.source, row.position) for row in rows), strict=True)
        for index, values in enumerate(fields):
            part = self._part(staged, index).numpy()
            part[:count] = values
            part[count:bucket] = -1 if index == 1 else 0
        for index, floats in enumerate(zip(*((row.temperature, row.uniform) for row in rows), strict=True), 3):
            part = self._part(staged, index).numpy().view(np.float32)
            part[:count] = floats
            part[count:bucket] = 0
        stop = self._tables_at + bucket * width
        tables = numbers[self._tables_at : stop].reshape(bucket, width)
        tables[count:] = 0
        for table, row, used in zip(tables, rows, counts, strict=False):
            table[:used] = row.blocks[:used]
        self._all[:stop].copy_(staged[:stop], non_blocking=True)
