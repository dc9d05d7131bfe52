"""Any affine matrix as one of 4-bit numbers around 8: weight[n, k] = scale * (q - 8) + offset."""

from typing import NamedTuple

import torch
from torch import Tensor

from specialist.models.weight import Affine


class Nibbles(NamedTuple):
    """Of 4 bits: the matrix. Of 8: its high nibbles above its low ones, whose products add up to the matrix's."""

    q: Tensor
    """uint8 [N or 2 N, K]"""
    scale: Tensor
    """float32 [N or 2 N, K / 32]"""
    offset: Tensor
    """float32 [N, K / 32]"""


def nibbles(weight: Affine) -> Nibbles:
    """d * q + m = d * (q - 8) + (m + 8 d), and with q = 16 h + l: 16 d * (h - 8) + d * (l - 8) + (m + 136 d)."""
    q, d, m = weight.integers(), weight.scale.float(), weight.minimum.float()
    if weight.bits == 4:
        return Nibbles(q, d, m + 8 * d)
    return Nibbles(torch.cat((q >> 4, q & 15)), torch.cat((16 * d, d)), m + 136 * d)


def joined(y: Tensor, num_rows: int) -> Tensor:
    """[T, N or 2 N] -> [T, N]"""
    return y if y.shape[-1] == num_rows else y[:, :num_rows] + y[:, num_rows:]
