"""Quantised matrices as the GPU keeps them. A thread of a tensor core finds its weights in the words that it loads.

A tensor core multiplies 16 columns at a time, of which thread t of the four that share a row has 2 t, 2 t + 1, 2 t + 8
and 2 t + 9. Each thread has four words, 16 bytes, of every 128 columns with 4 bits, or of 64 with 8 bits. A
word has its columns of two such steps, or of one. The lowest bits are the first column.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specialist.models.weights import GROUP, Affine, Weight
from specialist.ops.reference.layers import to

MULTIPLE = 128  # columns are padded to a multiple of this with zeros


class Quantised(NamedTuple):
    """A matrix [rows, columns]. weight = scale * q + minimum, rounded once to float32 and once to the model's type."""

    words: Tensor  # int32 [rows, padded columns * bits / 32]
    ranges: Tensor  # int32 [rows, padded columns / 32]: the scale, float16, in the low half, and the minimum
    bits: int  # 4 or 8
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.words), self.columns

    @property
    def padded(self) -> int:
        return self.ranges.shape[1] * GROUP

    def affine(self) -> Affine:
        """Return the matrix in groups of 32, as it was before `pack`."""
        rows = len(self.words)
        places = torch.arange(0, 32, self.bits, dtype=torch.int32, device=self.words.device)
        q = (self.words.unsqueeze(-1) >> places & (1 << self.bits) - 1).to(torch.uint8)
        # [rows, stretch, thread, word, step of the word, half, pair]
        q = q.view(rows, -1, 4, 4, 8 // self.bits, 2, 2).permute(0, 1, 3, 4, 5, 2, 6).reshape(rows, self.padded)
        q = q[:, : self.columns].contiguous()
        ranges = self.ranges[:, : self.columns // GROUP].contiguous().view(torch.float16)
        scale, minimum = (part.contiguous() for part in (ranges[:, 0::2], ranges[:, 1::2]))
        return Affine(4, q[:, 0::2] | q[:, 1::2] << 4, scale, minimum) if self.bits == 4 else Affine(8, q, scale, minimum)

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.affine().dense().to(dtype)


Matrix = Tensor | Quantised


def pack(weight: Affine) -> Quantised:
    rows, columns = weight.shape
    missing = -columns % MULTIPLE
    q = functional.pad(weight.integers(), (0, missing)).to(torch.int32)
    # [rows, stretch, word, step of the word, half, thread, pair]
    q = q.view(rows, -1, 4, 8 // weight.bits, 2, 4, 2).permute(0, 1, 5, 2, 3, 4, 6).reshape(rows, -1, 32 // weight.bits)
    words = q[..., 0].contiguous()
    for index in range(1, q.shape[-1]):
        words |= q[..., index] << index * weight.bits
    ranges = torch.stack((weight.scale, weight.minimum), dim=2).view(torch.int32).squeeze(2)
    return Quantised(words, functional.pad(ranges, (0, missing // GROUP)).contiguous(), weight.bits, columns)


def join(matrices: Sequence[Matrix]) -> Matrix:
    """Return one taller matrix with the rows of all: of floats if some are floats, else with the most bits of any."""
    if len(matrices) == 1:
        return matrices[0]
    quantised = [each for each in matrices if isinstance(each, Quantised)]
    floats = [each for each in matrices if isinstance(each, Tensor)]
    if floats:
        first = floats[0]
        return torch.cat([each.dense(first.dtype) if isinstance(each, Quantised) else each for each in matrices])
    if len({each.bits for each in quantised}) > 1:
        quantised = [_widen(each) for each in quantised]
    words, ranges = (torch.cat(parts) for parts in zip(*(each[:2] for each in quantised), strict=True))
    return Quantised(words, ranges, quantised[0].bits, quantised[0].columns)


def _widen(matrix: Quantised) -> Quantised:
    if matrix.bits == 8:
        return matrix
    narrow = matrix.affine()
    return pack(Affine(8, narrow.integers(), narrow.scale, narrow.minimum))


class Packed:
    """Keeps a quantised matrix as it is, and other matrices as floats."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.weight: Matrix = pack(to(weight, device)) if isinstance(weight, Affine) else weight.to(device, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        weight = self.weight
        return functional.linear(x, weight.dense(self.dtype) if isinstance(weight, Quantised) else weight)
