"""Quantised matrices as the GPU keeps them. A thread of a tensor core finds its weights in the words that it loads.

A tensor core multiplies 16 columns at a time, of which thread t of the four that share a row has 2 t, 2 t + 1, 2 t + 8
and 2 t + 9. Each thread has four words, 16 bytes, of every 128 columns with 4 bits, or of 64 with 8 bits. A
word has its columns of two such steps, or of one. The lowest bits are the first column.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specialist.models.weights import GROUP, Affine, Weight
from specialist.ops.reference.layers import Dense

MULTIPLE = 128  # columns are padded to a multiple of this with zeros
MOST_DENSE = 1 << 27  # the most weights of a matrix that is unpacked before products with many rows
_ROWS_AT_ONCE = 4096  # limits the memory of `pack`


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
        return (
            Affine(4, q[:, 0::2] | q[:, 1::2] << 4, scale, minimum) if self.bits == 4 else Affine(8, q, scale, minimum)
        )

    def dense(self, dtype: torch.dtype) -> Tensor:
        return self.affine().dense().to(dtype)


Matrix = Tensor | Quantised


def pack(weight: Affine) -> Quantised:
    columns = weight.shape[1]
    padded = _padded(columns)
    words = torch.cat([_words(q, weight.bits, padded) for q in torch.split(weight.q, _ROWS_AT_ONCE)])
    ranges = torch.stack((weight.scale, weight.minimum), dim=2).view(torch.int32).squeeze(2)
    return Quantised(words, functional.pad(ranges, (0, (padded - columns) // GROUP)), weight.bits, columns)


def _padded(columns: int) -> int:
    return -(-columns // MULTIPLE) * MULTIPLE


def _words(q: Tensor, bits: int, padded: int) -> Tensor:
    if bits == 4:
        q = torch.stack((q & 15, q >> 4), dim=-1).flatten(1)
    steps = 8 // bits
    wide = functional.pad(q, (0, padded - q.shape[1])).to(torch.int32)
    # from [rows, stretch, word, step of the word, half, thread, pair]
    fields = wide.view(len(q), -1, 4, steps, 2, 4, 2).permute(0, 1, 5, 2, 3, 4, 6)
    fields = fields.reshape(len(q), -1, 4 * steps)
    words = fields[..., 0].clone()
    for index in range(1, 4 * steps):
        words |= fields[..., index] << index * bits
    return words


def kept_bits(bits: Mapping[str, int]) -> dict[str, int]:
    """Return the bits of each matrix on a GPU. `bits`: of each quantised matrix of the file. Those that are joined get
    the most bits of any, and are floats if some of them are."""
    kept = {}
    for name, own in bits.items():
        prefix, _, last = name.rpartition(".")
        group = next(([f"{prefix}.{each}" for each in names] for names in _JOINED if last in names), [name])
        if all(each in bits for each in group):
            kept[name] = max(own, *(bits[each] for each in group))
    return kept


_JOINED = (("q", "k", "v"), ("gate", "up"))


def packed_bytes(rows: int, columns: int, bits: int) -> int:
    return rows * _padded(columns) * (bits + 1) // 8  # a scale and a minimum are 32 bits for 32 columns


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
    """Keeps a quantised matrix as it is, if the model's type has 16 bits, and else floats of that type."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        self.weight: Matrix
        if isinstance(weight, Affine) and dtype.itemsize == 2:
            parts = (part.to(device) for part in (weight.q, weight.scale, weight.minimum))
            self.weight = pack(Affine(weight.bits, *parts))
        else:
            self.weight = Dense(weight, device, dtype).weight

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        weight = self.weight
        return functional.linear(x, weight.dense(x.dtype) if isinstance(weight, Quantised) else weight)
