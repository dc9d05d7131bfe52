"""4-bit and 8-bit products by torch's dynamic kernel: activations are rounded to 8 bits. Made for Arm."""

import torch
from torch import Tensor

from specialist.models.weight import GROUP, Affine, Weight
from specialist.ops.linear.nibbles import joined, nibbles


class DynQuant:
    """The kernel multiplies with scale * (q - 8); what is left is one number a group, times the group's sum."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(weight, Affine) or device.type != "cpu" or dtype != torch.float32:
            raise ValueError("dyn_quant multiplies 4-bit and 8-bit weights in float32 on the CPU")
        self._rows, self._columns = weight.shape
        if self._columns == GROUP:
            raise ValueError(f"dyn_quant needs more than one group of {GROUP} columns")
        q, scale, offset = nibbles(weight)
        packed = q[:, 0::2] | q[:, 1::2] << 4
        self._products = len(q)
        self._packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
            packed.contiguous(), scale.bfloat16(), None, GROUP, self._columns, self._products
        )
        self._offset = offset.T.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]"""
        y = torch.ops.aten._dyn_quant_matmul_4bit(x.contiguous(), self._packed, GROUP, self._columns, self._products)
        sums = x.view(len(x), -1, GROUP).sum(-1)
        return torch.addmm(joined(y, self._rows), sums, self._offset)
