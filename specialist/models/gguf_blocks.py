"""Quantised blocks of a GGUF file, converted to groups of 32 with separate integers, scales and minima.

Q4_0, Q4_1 and Q8_0 are converted exactly. In Q4_K a scale is the product of a half and a six-bit integer, rounded to a
half (an error below 1 % of a step). Q6_K has a scale for every 16 columns and is requantised to 8 bits in groups of 32.
Values that overflow become infinite or NaN, which the check of the scales refuses.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.models.gguf_reader import Bytes, GgufTensor
from specialist.models.weights import GROUP, Affine, Weight

Floats = NDArray[np.float32]
Ranges = tuple[Floats, Floats]  # scale and minimum of each group

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@np.errstate(all="ignore")
def read_weight(stored: GgufTensor) -> Weight:
    """Return floats as a view of the file, and blocks converted to an Affine."""
    if stored.kind.name in PLAIN:
        return _view(stored)
    blocks, rows = _blocks(stored), stored.shape[0]
    if stored.kind.name == "Q6_K":
        return requantise(q6_k(blocks), rows)
    scale, minimum = RANGES[stored.kind.name](blocks)
    q = torch.from_numpy(INTEGERS[stored.kind.name](blocks)).view(rows, -1)
    return Affine(8 if stored.kind.name == "Q8_0" else 4, q, _to_half(scale, rows), _to_half(minimum, rows))


@np.errstate(all="ignore")
def read_scales(stored: GgufTensor) -> tuple[Tensor, ...]:
    """Return the tensors that determine whether the weight is finite; for quantised blocks, they are small."""
    if stored.kind.name in PLAIN:
        return (_view(stored),)
    if stored.kind.name == "Q6_K":
        weight = requantise(q6_k(_blocks(stored)), stored.shape[0])
        return weight.scale, weight.minimum
    return tuple(_to_half(values, stored.shape[0]) for values in RANGES[stored.kind.name](_blocks(stored)))


def _view(stored: GgufTensor) -> Tensor:
    return torch.from_numpy(stored.data).view(PLAIN[stored.kind.name]).view(stored.shape)


def _blocks(stored: GgufTensor) -> Bytes:
    return stored.data.reshape(-1, stored.kind.num_bytes)


def _halves(blocks: Bytes, start: int) -> Floats:
    """Return the half at byte `start` of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _to_half(values: Floats, rows: int) -> Tensor:
    """Convert to float16. Values out of range become infinite, which the check of the weights refuses."""
    return torch.from_numpy(values).half().view(rows, -1)


def _q4_k_ranges(blocks: Bytes) -> Ranges:
    """Return the ranges of d * sc * q - dmin * m. Eight groups each have a six-bit sc and m, in 12 bytes."""
    front, middle, back = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    sc = np.concatenate((front & 63, back & 15 | front >> 6 << 4), axis=1)
    m = np.concatenate((middle & 63, back >> 4 | middle >> 6 << 4), axis=1)
    return _halves(blocks, 0) * sc, -_halves(blocks, 2) * m


def _nibbles(raw: Bytes) -> Bytes:
    """Repack bytes [groups, n], in which all low nibbles come before the high ones, so that neighbours share a byte."""
    low, high = raw & 15, raw >> 4
    return np.concatenate((low[:, 0::2] | low[:, 1::2] << 4, high[:, 0::2] | high[:, 1::2] << 4), axis=1)


def q6_k(blocks: Bytes) -> Floats:
    """Return d * sc * (q - 32) of sixteen groups of 16, as values [groups of 32, 32]."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)  # [blocks, half, byte row, column]
    low4 = np.stack((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)  # four runs of 32 in each half
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    q = (low4 | high << 4).astype(np.int8) - np.int8(32)
    scale = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8)  # [blocks, 16]
    values: Floats = q.reshape(-1, 16, 16).astype(np.float32) * scale[:, :, None]
    return values.reshape(-1, GROUP)


@np.errstate(all="ignore")
def requantise(values: Floats, rows: int) -> Affine:
    """Quantise groups of 32 floats to 8 bits, with an error of at most half a step."""
    minimum = -_half_above(-values.min(axis=1, keepdims=True))
    scale = _half_above((values.max(axis=1, keepdims=True) - minimum) / 255)
    steps = np.where(scale > 0, np.rint((values - minimum) / scale), 0)
    q = torch.from_numpy(np.clip(np.nan_to_num(steps), 0, 255).astype(np.uint8))
    return Affine(8, q.view(rows, -1), _to_half(scale, rows), _to_half(minimum, rows))


def _half_above(values: Floats) -> Floats:
    nearest = values.astype(np.float16)
    above = np.where(nearest < values, np.nextafter(nearest, np.float16(np.inf)), nearest)
    return above.astype(np.float32)


RANGES: dict[str, Callable[[Bytes], Ranges]] = {
    "Q4_0": lambda blocks: (_halves(blocks, 0), -8 * _halves(blocks, 0)),  # d * (q - 8)
    "Q4_1": lambda blocks: (_halves(blocks, 0), _halves(blocks, 2)),  # d * q + m
    "Q8_0": lambda blocks: (_halves(blocks, 0), -128 * _halves(blocks, 0)),  # d * q, q signed: d * (q + 128) - 128 * d
    "Q4_K": _q4_k_ranges,
}
INTEGERS: dict[str, Callable[[Bytes], Bytes]] = {
    "Q4_0": lambda blocks: _nibbles(blocks[:, 2:]),
    "Q4_1": lambda blocks: _nibbles(blocks[:, 4:]),
    "Q8_0": lambda blocks: blocks[:, 2:] ^ np.uint8(128),
    "Q4_K": lambda blocks: _nibbles(blocks[:, 16:].reshape(-1, 32)),
}
