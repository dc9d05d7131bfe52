"""4-bit and 8-bit products by torch's kernel for x86, which rounds activations, scales and results to bfloat16."""

import torch
from torch import Tensor

from specialist.models.weight import GROUP, Affine, Weight
from specialist.ops.linear.nibbles import joined, nibbles

ROWS = 16
"""The kernel takes so many rows at a time."""


class Int4Pack:
    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(weight, Affine) or device.type != "cpu":
            raise ValueError("int4pack multiplies 4-bit and 8-bit weights on the CPU")
        self._rows = weight.shape[0]
        if self._rows % ROWS:
            raise ValueError(f"int4pack needs a multiple of {ROWS} rows, got {self._rows}")
        q, scale, offset = nibbles(weight)
        zero = torch.zeros_like(scale)
        zero[-self._rows :] = offset
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q.int(), 1)
        self._scale_and_zero = torch.stack((scale.T, zero.T), dim=-1).bfloat16().contiguous()  # [K / 32, N, 2]

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]"""
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16().contiguous(), self._packed, GROUP, self._scale_and_zero
        )
        return joined(y.to(x.dtype), self._rows)
