"""GGUF files: metadata, the position of every tensor, and quantised blocks converted to groups of 32.

Every count, length and offset is checked. A group has a scale, a minimum and an integer for each column. Q4_0, Q4_1 and
Q8_0 are converted exactly. The scales of Q4_K, each the product of a float16 and a six-bit integer, are rounded to
float16, an error below 1 % of a quantisation step. Q6_K has a scale for every 16 columns and is requantised to 8 bits
in groups of 32. Values that overflow become infinite or NaN; the check of the weights then refuses the model.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.models.fields import ModelRefused
from specialist.models.weights import GROUP, Affine, Weight


class TensorType(NamedTuple):
    name: str
    columns: int  # elements of a block
    num_bytes: int  # bytes of a block


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}

_UNSUPPORTED_IDS = (6, 7, 9, 10, 11, 13, *range(15, 30), 34, 35, 39)  # refused with an error that names the type
_UNSUPPORTED_NAMES = (
    "Q5_0 Q5_1 Q8_1 Q2_K Q3_K Q5_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS "
    "I8 I16 I32 I64 F64 IQ1_M TQ1_0 TQ2_0 MXFP4"
)
UNSUPPORTED_TYPES = dict(zip(_UNSUPPORTED_IDS, _UNSUPPORTED_NAMES.split(), strict=True))

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
MAX_NAME = 65_535
SMALLEST_ENTRY = 8 + 4 + 1  # bytes of a metadata entry: key length, type, one byte of value
SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # bytes of a tensor's description: name length, dimensions, one size, type, offset

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9

Bytes = NDArray[np.uint8]


class GgufTensor(NamedTuple):
    kind: TensorType
    shape: tuple[int, ...]  # rows first
    data: Bytes  # a view of the file


@dataclass(frozen=True, slots=True, eq=False)
class Gguf:
    metadata: dict[str, object]
    tensors: dict[str, GgufTensor]


class Cursor:
    """Reads forward through the file, never past its end."""

    def __init__(self, data: Bytes, source: str) -> None:
        self.data = data
        self.view = data.data
        self.source = source
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, num_bytes: int, what: str) -> bytes:
        if num_bytes > self.left:
            raise self.damaged(f"{what} needs {num_bytes:,} bytes, but only {self.left:,} are left")
        self.at += num_bytes
        return self.view[self.at - num_bytes : self.at].tobytes()

    def count(self, what: str, smallest: int) -> int:
        number = self.u64(what)
        if number * smallest > self.left:
            raise self.damaged(f"{what}: the count {number:,} is too large for the {self.left:,} bytes left")
        return number

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def text(self, what: str) -> str:
        raw = self.take(self.count(f"bytes of {what}", 1), what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not UTF-8") from None

    def name(self, what: str) -> str:
        name = self.text(what)
        if not 0 < len(name) <= MAX_NAME:
            raise self.damaged(f"{what} must have 1 to {MAX_NAME:,} characters, got {len(name):,}")
        return name

    def value(self, key: str) -> object:
        kind = self.u32(f"type of {key}")
        if kind == TEXT:
            return self.text(key)
        if kind != ARRAY:
            return self._scalars(kind, key, 1)[0]
        kind = self.u32(f"element type of {key}")
        if kind == TEXT:
            return [self.text(key) for _ in range(self.count(key, 8))]
        return self._scalars(kind, key, None)

    def _scalars(self, kind: int, key: str, number: int | None) -> list[object]:
        code = SCALARS.get(kind)
        if code is None:
            raise self.damaged(f"{key} has type {kind}, which does not exist")
        size = struct.calcsize(code)
        number = self.count(key, size) if number is None else number
        return list(struct.unpack(f"<{number}{code}", self.take(number * size, key)))

    def damaged(self, why: str) -> ModelRefused:
        return ModelRefused(f"{self.source}: damaged GGUF file: {why}; fetch it again")


def read_gguf(path: Path) -> Gguf:
    """Map the file. Tensors are views of it: processes that read the same file share its pages."""
    source = path.name
    if path.stat().st_size < len(MAGIC):
        raise ModelRefused(f"{source}: not a GGUF file: too short")
    # Copy on write, because torch requires writable memory; it is never written to.
    data: Bytes = np.memmap(path, np.uint8, mode="c")
    cursor = Cursor(data, source)
    if cursor.take(4, "magic") != MAGIC:
        raise ModelRefused(f"{source}: not a GGUF file")
    version = cursor.u32("version")
    if version not in VERSIONS:
        raise ModelRefused(f"{source}: GGUF version {version} is not supported (2 and 3 are): convert the model again")
    num_tensors = cursor.count("tensors", SMALLEST_TENSOR)
    metadata = _read_metadata(cursor)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment must be a power of two from 8 to {MAX_ALIGNMENT:,}, got {alignment}")
    return Gguf(metadata, _read_tensors(cursor, num_tensors, alignment))


def _read_metadata(cursor: Cursor) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(cursor.count("metadata entries", SMALLEST_ENTRY)):
        key = cursor.name("metadata key")
        if key in metadata:
            raise cursor.damaged(f"{key} is in the metadata twice")
        metadata[key] = cursor.value(key)
    return metadata


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
    described = [_describe(cursor, alignment) for _ in range(num_tensors)]
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    end = 0
    for offset, name, kind, shape, num_bytes in sorted(described):
        if name in tensors:
            raise cursor.damaged(f"{name} is in the file twice")
        if offset < end:
            raise cursor.damaged(f"{name} overlaps the tensor before it")
        end = offset + num_bytes
        if start + end > len(cursor.data):
            raise cursor.damaged(f"{name} ends {start + end - len(cursor.data):,} bytes past the end of the file")
        tensors[name] = GgufTensor(kind, shape, cursor.data[start + offset : start + end])
    return tensors


def _describe(cursor: Cursor, alignment: int) -> tuple[int, str, TensorType, tuple[int, ...], int]:
    """Return the offset, name, type, shape and number of bytes of a tensor."""
    name = cursor.name("tensor name")
    num_dimensions = cursor.u32(f"dimensions of {name}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.damaged(f"{name} must have 1 to {MAX_DIMENSIONS} dimensions, got {num_dimensions}")
    sizes = [cursor.u64(f"sizes of {name}") for _ in range(num_dimensions)]
    if min(sizes) < 1:
        raise cursor.damaged(f"{name} has a dimension of size 0")
    number = cursor.u32(f"type of {name}")
    kind = TENSOR_TYPES.get(number)
    if kind is None:
        stored = UNSUPPORTED_TYPES.get(number, f"type {number}")
        raise ModelRefused(
            f"{cursor.source}: {name} is stored as {stored}, which is not supported: quantise the model "
            f"as one of {', '.join(kind.name for kind in TENSOR_TYPES.values())}"
        )
    offset = cursor.u64(f"offset of {name}")
    if offset % alignment:
        raise cursor.damaged(f"{name} does not start at a multiple of {alignment}")
    if sizes[0] % kind.columns:
        raise cursor.damaged(f"{name} has {sizes[0]:,} columns, but {kind.name} needs a multiple of {kind.columns}")
    num_bytes = kind.num_bytes
    for size in sizes:
        num_bytes *= size
    return offset, name, kind, tuple(reversed(sizes)), num_bytes // kind.columns


Floats = NDArray[np.float32]
Ranges = tuple[Floats, Floats]  # scale and minimum of each group

BITS: dict[str, Literal[4, 8]] = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q6_K": 8, "Q8_0": 8}  # of an Affine
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@np.errstate(all="ignore")
def read_weight(stored: GgufTensor) -> Weight:
    """Return a float weight as a view of the file, and a quantised one as an Affine."""
    if stored.kind.name in PLAIN:
        return _view(stored)
    blocks, rows = _blocks(stored), stored.shape[0]
    if stored.kind.name == "Q6_K":
        return requantize(q6_k(blocks), rows)
    scale, minimum = RANGES[stored.kind.name](blocks)
    q = torch.from_numpy(INTEGERS[stored.kind.name](blocks)).view(rows, -1)
    return Affine(BITS[stored.kind.name], q, _to_half(scale, rows), _to_half(minimum, rows))


@np.errstate(all="ignore")
def read_scales(stored: GgufTensor) -> tuple[Tensor, ...]:
    """Return the tensors to check for infinity and NaN: of a quantised weight, only the scales and minimums."""
    if stored.kind.name in PLAIN:
        return (_view(stored),)
    if stored.kind.name == "Q6_K":
        weight = requantize(q6_k(_blocks(stored)), stored.shape[0])
        return weight.scale, weight.minimum
    return tuple(_to_half(values, stored.shape[0]) for values in RANGES[stored.kind.name](_blocks(stored)))


def _view(stored: GgufTensor) -> Tensor:
    return torch.from_numpy(stored.data).view(PLAIN[stored.kind.name]).view(stored.shape)


def _blocks(stored: GgufTensor) -> Bytes:
    return stored.data.reshape(-1, stored.kind.num_bytes)


def _halves(blocks: Bytes, start: int) -> Floats:
    """Return the float16 at byte `start` of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _to_half(values: Floats, rows: int) -> Tensor:
    """Convert to float16. Values out of range become infinite, and the check of the weights refuses the model."""
    return torch.from_numpy(values).half().view(rows, -1)


def _q4_k_ranges(blocks: Bytes) -> Ranges:
    """Return the scale d * sc and the minimum -dmin * m of each group; sc and m have six bits each."""
    front, middle, back = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    sc = np.concatenate((front & 63, back & 15 | front >> 6 << 4), axis=1)
    m = np.concatenate((middle & 63, back >> 4 | middle >> 6 << 4), axis=1)
    return _halves(blocks, 0) * sc, -_halves(blocks, 2) * m


def _nibbles(raw: Bytes) -> Bytes:
    """Pack adjacent columns into one byte. In `raw`, the low nibbles are the first half of the columns."""
    low, high = raw & 15, raw >> 4
    return np.concatenate((low[:, 0::2] | low[:, 1::2] << 4, high[:, 0::2] | high[:, 1::2] << 4), axis=1)


def q6_k(blocks: Bytes) -> Floats:
    """Return the values d * sc * (q - 32), [groups of 32, 32]. A block has sixteen groups of 16, with one sc each."""
    low = blocks[:, :128].reshape(-1, 2, 2, 32)  # [blocks, half, byte row, column]
    low4 = np.stack((low & 15, low >> 4), axis=2).reshape(-1, 2, 4, 32)  # four runs of 32 in each half
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    q = (low4 | high << 4).astype(np.int8) - np.int8(32)
    scale = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8)  # [blocks, 16]
    values: Floats = q.reshape(-1, 16, 16).astype(np.float32) * scale[:, :, None]
    return values.reshape(-1, GROUP)


@np.errstate(all="ignore")
def requantize(values: Floats, rows: int) -> Affine:
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
