"""A kernel for small integers, beside matrices that are stored as floats."""

import torch
from torch import Tensor

from specialist.models.weight import Weight
from specialist.ops.linear.linear import Linear, MakeLinear
from specialist.ops.linear.reference import Dense


class Mixed:
    """Floats are multiplied as they are, everything else by the kernel. For files that hold both."""

    def __init__(self, kernel: MakeLinear) -> None:
        self._kernel = kernel

    def __call__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> Linear:
        return Dense(weight, device, dtype) if isinstance(weight, Tensor) else self._kernel(weight, device, dtype)
