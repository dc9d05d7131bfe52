"""Weights in the order in which the CPU reads them: tiles of 16 rows, see `linear.hpp`."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specialist.models.weight import GROUP, Affine, Weight

LANES = 16
Kind = Literal[0, 4, 8, 32]
Bytes = NDArray[np.uint8]


def kind_of(weight: Weight) -> Kind:
    return weight.bits if isinstance(weight, Affine) else 32


def pack(weight: Weight) -> Bytes:
    """Rows are padded to whole tiles with zeros."""
    return _pack_affine(weight) if isinstance(weight, Affine) else pack_floats(weight)


def pack_floats(weight: Tensor) -> Bytes:
    rows, columns = weight.shape
    tiles = _whole_tiles(weight.float().numpy(), rows).reshape(-1, LANES, columns)
    return np.ascontiguousarray(tiles.transpose(0, 2, 1)).view(np.uint8).reshape(-1)


def _pack_affine(weight: Affine) -> Bytes:
    rows, columns = weight.shape
    groups = columns // GROUP
    q = _whole_tiles(weight.integers().numpy(), rows).reshape(-1, LANES, groups, GROUP)
    values = _nibbles(q) if weight.bits == 4 else _bytes(q)
    parts = [values, _halves(weight.scale, rows), _halves(weight.minimum, rows)]
    return np.concatenate(parts, axis=2).reshape(-1)


def _bytes(q: Bytes) -> Bytes:
    """[tile, row, group, 32] to [tile, group, quad, row, 4]."""
    tiles, _, groups, _ = q.shape
    return q.reshape(tiles, LANES, groups, 8, 4).transpose(0, 2, 3, 1, 4).reshape(tiles, groups, -1)


def _nibbles(q: Bytes) -> Bytes:
    """Quads 2j and 2j + 1 share the bytes of vector j."""
    tiles, _, groups, _ = q.shape
    quads = q.reshape(tiles, LANES, groups, 4, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    low, high = quads[:, :, :, 0], quads[:, :, :, 1]
    return np.bitwise_or(low, np.left_shift(high, 4, dtype=np.uint8), dtype=np.uint8).reshape(tiles, groups, -1)


def _halves(values: Tensor, rows: int) -> Bytes:
    """[rows, groups] of float16 to [tile, group, 32 bytes]."""
    tiles = _whole_tiles(values.numpy(), rows).reshape(-1, LANES, values.shape[1])
    return np.ascontiguousarray(tiles.transpose(0, 2, 1)).view(np.uint8)


def _whole_tiles(values: NDArray[Any], rows: int) -> NDArray[Any]:
    return np.pad(values, ((0, -rows % LANES), (0, 0)))
