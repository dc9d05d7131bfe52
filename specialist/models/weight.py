"""A matrix as it is stored: floats, or small integers with a scale and a minimum for each group of 32."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

GROUP = 32
"""Columns that share a scale and a minimum."""


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """weight[n, k] = scale[n, k // 32] * q[n, k] + minimum[n, k // 32]. Every GGUF block format is one of these."""

    bits: Literal[4, 8]
    q: Tensor
    """uint8. 8 bits: [N, K]. 4 bits: [N, K / 2], the even column in the low nibble."""
    scale: Tensor
    """float16 [N, K / 32]"""
    minimum: Tensor
    """float16 [N, K / 32]"""

    @property
    def shape(self) -> tuple[int, int]:
        rows, groups = self.scale.shape
        return rows, groups * GROUP

    def integers(self) -> Tensor:
        """uint8 [N, K]"""
        if self.bits == 8:
            return self.q
        return torch.stack((self.q & 15, self.q >> 4), dim=-1).flatten(1)

    def dense(self) -> Tensor:
        """float32 [N, K]"""
        rows, columns = self.shape
        q = self.integers().view(rows, columns // GROUP, GROUP).float()
        return torch.addcmul(self.minimum.float().unsqueeze(-1), q, self.scale.float().unsqueeze(-1)).view(
            rows, columns
        )


Weight = Tensor | Affine


def dense(weight: Weight) -> Tensor:
    """float32, whatever it is stored as."""
    return weight.dense() if isinstance(weight, Affine) else weight.float()
