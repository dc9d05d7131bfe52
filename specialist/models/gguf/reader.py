"""The container: metadata and where each tensor lies. Every count, length and offset is checked before it is used."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specialist.models.errors import ModelRefused
from specialist.models.gguf.kinds import KINDS, Kind, kind_name

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
MAX_NAME = 65_535
SMALLEST_ENTRY = 8 + 4 + 1
"""Bytes of a metadata entry: length of the key, type, a byte of value."""
SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8
"""Bytes of a tensor's description: length of the name, dimensions, one size, type, offset."""

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9

Bytes = NDArray[np.uint8]


class Stored(NamedTuple):
    """A tensor on disk."""

    kind: Kind
    shape: tuple[int, ...]
    """Rows first."""
    data: Bytes
    """A view of the file."""


@dataclass(frozen=True, slots=True, eq=False)
class Gguf:
    metadata: dict[str, object]
    tensors: dict[str, Stored]


class Cursor:
    """Reads forward through the file and never past its end."""

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
            raise self.damaged(f"{what} needs {num_bytes:,} bytes, {self.left:,} are left")
        self.at += num_bytes
        return self.view[self.at - num_bytes : self.at].tobytes()

    def count(self, what: str, smallest: int) -> int:
        """A number of things that take at least `smallest` bytes each."""
        number = self.u64(what)
        if number * smallest > self.left:
            raise self.damaged(f"{number:,} of {what} do not fit in the {self.left:,} bytes left")
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
            raise self.damaged(f"{what} must have 1 to {MAX_NAME:,} characters, has {len(name):,}")
        return name

    def value(self, key: str) -> object:
        kind = self.u32(f"type of {key}")
        return self._array(key) if kind == ARRAY else self._one(kind, key)

    def _array(self, key: str) -> list[object]:
        kind = self.u32(f"element type of {key}")
        if kind == TEXT:
            return [self.text(key) for _ in range(self.count(key, 8))]
        code = self._scalar(kind, key)
        size = struct.calcsize(code)
        number = self.count(key, size)
        return list(struct.unpack(f"<{number}{code}", self.take(number * size, key)))

    def _one(self, kind: int, key: str) -> object:
        if kind == TEXT:
            return self.text(key)
        code = self._scalar(kind, key)
        value: object = struct.unpack(f"<{code}", self.take(struct.calcsize(code), key))[0]
        return value

    def _scalar(self, kind: int, key: str) -> str:
        code = SCALARS.get(kind)
        if code is None:
            raise self.damaged(f"{key} has type {kind}, which does not exist")
        return code

    def damaged(self, why: str) -> ModelRefused:
        return ModelRefused(f"{self.source}: damaged GGUF file: {why}; fetch it again")


def read_gguf(path: Path) -> Gguf:
    """Map the file. Tensors are views of it: pages are shared by all who read the same file."""
    source = path.name
    if path.stat().st_size < len(MAGIC):
        raise ModelRefused(f"{source}: not a GGUF file: too short")
    # Copy on write: torch wants memory it may write to; nobody does.
    data: Bytes = np.memmap(path, np.uint8, mode="c")
    cursor = Cursor(data, source)
    if cursor.take(4, "magic") != MAGIC:
        raise ModelRefused(f"{source}: not a GGUF file")
    version = cursor.u32("version")
    if version not in VERSIONS:
        raise ModelRefused(f"{source}: GGUF version {version} is not supported (2 and 3 are): convert the model again")
    num_tensors = cursor.count("tensors", SMALLEST_TENSOR)
    metadata = _read_metadata(cursor)
    return Gguf(metadata, _read_tensors(cursor, num_tensors, _alignment(metadata, cursor)))


def _read_metadata(cursor: Cursor) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(cursor.count("metadata entries", SMALLEST_ENTRY)):
        key = cursor.name("metadata key")
        if key in metadata:
            raise cursor.damaged(f"{key} stands in the metadata twice")
        metadata[key] = cursor.value(key)
    return metadata


def _alignment(metadata: dict[str, object], cursor: Cursor) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.damaged(f"general.alignment must be a power of two from 8 to {MAX_ALIGNMENT:,}, is {alignment}")
    return alignment


class _Described(NamedTuple):
    name: str
    kind: Kind
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def _read_tensors(cursor: Cursor, num_tensors: int, alignment: int) -> dict[str, Stored]:
    described = [_describe(cursor, alignment) for _ in range(num_tensors)]
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Stored] = {}
    end = 0
    for tensor in sorted(described, key=lambda one: one.offset):
        if tensor.name in tensors:
            raise cursor.damaged(f"{tensor.name} stands in the file twice")
        if tensor.offset < end:
            raise cursor.damaged(f"{tensor.name} overlaps the tensor before it")
        end = tensor.offset + tensor.num_bytes
        if start + end > len(cursor.data):
            raise cursor.damaged(f"{tensor.name} ends {start + end - len(cursor.data):,} bytes behind the end")
        tensors[tensor.name] = Stored(tensor.kind, tensor.shape, cursor.data[start + tensor.offset : start + end])
    return tensors


def _describe(cursor: Cursor, alignment: int) -> _Described:
    name = cursor.name("tensor name")
    num_dimensions = cursor.u32(f"dimensions of {name}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.damaged(f"{name} has {num_dimensions} dimensions")
    sizes = [cursor.u64(f"sizes of {name}") for _ in range(num_dimensions)]
    if min(sizes) < 1:
        raise cursor.damaged(f"{name} has a dimension of size 0")
    number = cursor.u32(f"type of {name}")
    kind = KINDS.get(number)
    if kind is None:
        raise ModelRefused(
            f"{cursor.source}: {name} is stored as {kind_name(number)}, which is not supported: quantise the model "
            f"as one of {', '.join(kind.name for kind in KINDS.values())}"
        )
    offset = cursor.u64(f"offset of {name}")
    if offset % alignment:
        raise cursor.damaged(f"{name} does not start at a multiple of {alignment}")
    if sizes[0] % kind.columns:
        raise cursor.damaged(f"{name} has {sizes[0]:,} columns, {kind.name} needs a multiple of {kind.columns}")
    num_bytes = kind.num_bytes
    for size in sizes:
        num_bytes *= size
    return _Described(name, kind, tuple(reversed(sizes)), offset, num_bytes // kind.columns)
