"""From blocks as a GGUF file stores them to the one form in which Octet holds quantised weights.

A block of columns carries its scale beside its integers. Here integers, scales and minima lie apart, in groups of 32.
What overflows on the way becomes infinite or NaN, which the scan of the scales refuses.
Q4_0, Q4_1 and Q8_0 come over exactly. In Q4_K a scale is a product of a half and a six-bit integer, rounded to a half
(an error below 1 % of a step). Q6_K has a scale for every 16 columns and is requantised to 8 bits in groups of 32.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.models.gguf.reader import Bytes, Stored
from specialist.models.weight import GROUP, Affine, Weight

Floats = NDArray[np.float32]
Ranges = tuple[Floats, Floats]
"""Scale and minimum of each group."""

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@np.errstate(all="ignore")
def read_weight(stored: Stored) -> Weight:
    """Floats as a view of the file; blocks unpacked into an Affine."""
    if stored.kind.name in PLAIN:
        return _view(stored)
    blocks, rows = _blocks(stored), stored.shape[0]
    if stored.kind.name == "Q6_K":
        return requantise(q6_k(blocks), rows)
    scale, minimum = RANGES[stored.kind.name](blocks)
    q = torch.from_numpy(INTEGERS[stored.kind.name](blocks)).view(rows, -1)
    return Affine(8 if stored.kind.name == "Q8_0" else 4, q, _to_half(scale, rows), _to_half(minimum, rows))


@np.errstate(all="ignore")
def read_scales(stored: Stored) -> tuple[Tensor, ...]:
    """What must be finite for the weight to be: much less to read than the weight."""
    if stored.kind.name in PLAIN:
        return (_view(stored),)
    if stored.kind.name == "Q6_K":
        weight = requantise(q6_k(_blocks(stored)), stored.shape[0])
        return weight.scale, weight.minimum
    return tuple(_to_half(values, stored.shape[0]) for values in RANGES[stored.kind.name](_blocks(stored)))


def _view(stored: Stored) -> Tensor:
    return torch.from_numpy(stored.data).view(PLAIN[stored.kind.name]).view(stored.shape)


def _blocks(stored: Stored) -> Bytes:
    return stored.data.reshape(-1, stored.kind.num_bytes)


def _halves(blocks: Bytes, start: int) -> Floats:
    """The half at byte `start` of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _to_half(values: Floats, rows: int) -> Tensor:
    """Beyond the range of a half becomes infinity, which the scan of the weights refuses."""
    return torch.from_numpy(values).half().view(rows, -1)


def _q4_0_ranges(blocks: Bytes) -> Ranges:
    """d * (q - 8)"""
    d = _halves(blocks, 0)
    return d, -8 * d


def _q4_1_ranges(blocks: Bytes) -> Ranges:
    """d * q + m"""
    return _halves(blocks, 0), _halves(blocks, 2)


def _q8_0_ranges(blocks: Bytes) -> Ranges:
    """d * q, q signed: d * (q + 128) - 128 * d"""
    d = _halves(blocks, 0)
    return d, -128 * d


def _q4_k_ranges(blocks: Bytes) -> Ranges:
    """d * sc * q - dmin * m: for each of eight groups sc and m of six bits, packed into 12 bytes."""
    front, middle, back = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    sc = np.concatenate((front & 63, back & 15 | front >> 6 << 4), axis=1)
    m = np.concatenate((middle & 63, back >> 4 | middle >> 6 << 4), axis=1)
    return _halves(blocks, 0) * sc, -_halves(blocks, 2) * m


def _nibbles(raw: Bytes) -> Bytes:
    """A run of bytes [groups, n]: first all low nibbles, then all high ones. Repacked to neighbours in one byte."""
    low, high = raw & 15, raw >> 4
    return np.concatenate((low[:, 0::2] | low[:, 1::2] << 4, high[:, 0::2] | high[:, 1::2] << 4), axis=1)


def q6_k(blocks: Bytes) -> Floats:
    """d * sc * (q - 32) in sixteen groups of 16, as values [groups of 32, 32]."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)  # [blocks, half, byte row, column]
    low4 = np.stack((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)  # four runs of 32 in each half
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    q = (low4 | high << 4).astype(np.int8) - np.int8(32)
    scale = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8)  # [blocks, 16]
    values: Floats = q.reshape(-1, 16, 16).astype(np.float32) * scale[:, :, None]
    return values.reshape(-1, GROUP)


@np.errstate(all="ignore")
def requantise(values: Floats, rows: int) -> Affine:
    """Groups of 32 floats to 8 bits, each at most half a step away. The steps just cover the group's range."""
    minimum = -_half_above(-values.min(axis=1, keepdims=True))
    scale = _half_above((values.max(axis=1, keepdims=True) - minimum) / 255)
    steps = np.where(scale > 0, np.rint((values - minimum) / scale), 0)
    q = torch.from_numpy(np.clip(np.nan_to_num(steps), 0, 255).astype(np.uint8))
    return Affine(8, q.view(rows, -1), _to_half(scale, rows), _to_half(minimum, rows))


def _half_above(values: Floats) -> Floats:
    """The least half that is not below."""
    nearest = values.astype(np.float16)
    above = np.where(nearest < values, np.nextafter(nearest, np.float16(np.inf)), nearest)
    return above.astype(np.float32)


RANGES: dict[str, Callable[[Bytes], Ranges]] = {
    "Q4_0": _q4_0_ranges,
    "Q4_1": _q4_1_ranges,
    "Q8_0": _q8_0_ranges,
    "Q4_K": _q4_k_ranges,
}
INTEGERS: dict[str, Callable[[Bytes], Bytes]] = {
    "Q4_0": lambda blocks: _nibbles(blocks[:, 2:]),
    "Q4_1": lambda blocks: _nibbles(blocks[:, 4:]),
    "Q8_0": lambda blocks: blocks[:, 2:] ^ np.uint8(128),
    "Q4_K": lambda blocks: _nibbles(blocks[:, 16:].reshape(-1, 32)),
}
