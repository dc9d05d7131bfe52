"""What every kernel for a matrix product looks like."""

from typing import Protocol

import torch
from torch import Tensor

from specialist.models.weight import Weight


class Linear(Protocol):
    def __call__(self, x: Tensor, /) -> Tensor:
        """[T, K], T at least 1 -> a tensor of its own, [T, N], of the same type"""


class MakeLinear(Protocol):
    def __call__(self, weight: Weight, device: torch.device, dtype: torch.dtype, /) -> Linear:
        """Prepare a weight [N, K] for products in `dtype` on `device`. Raises ValueError when the kernel cannot."""
