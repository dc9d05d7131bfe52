"""One matrix product with the C++ kernel, on the calling thread: to test it and to time it."""

from typing import Any

import torch
from torch import Tensor

from specialist.models.weight import Weight
from specialist.ops.cpu.library import Linear
from specialist.ops.cpu.pack import kind_of, pack


class PackedLinear:
    def __init__(self, weight: Weight, library: Any) -> None:
        self.rows, self.columns = weight.shape
        self._library = library
        self._packed = pack(weight)
        self._linear = Linear(kind_of(weight), self.rows, self.columns, 0, self._packed.ctypes.data, None)

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [T, K] -> [T, N]"""
        rows = x.contiguous()
        out = torch.empty(len(rows), self.rows)
        self._library.octet_linear(self._linear, rows.data_ptr(), len(rows), out.data_ptr())
        return out
