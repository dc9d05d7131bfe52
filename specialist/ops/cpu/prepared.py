"""A model's weights packed for the CPU kernels, in one file that every replica of the model maps.

The file: entries, each on a cache line of its own; a table of them in JSON; where the table begins (8 bytes) and the
sha256 of everything before.
"""

import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specialist.ops.cpu.pack import Bytes, Kind

FORMAT = b"octet-packed-2\n"
ALIGNMENT = 64
"""A vector never straddles two cache lines."""
_POINTER, _DIGEST = 8, 32


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    kind: Kind
    rows: int
    columns: int
    offset: int
    """Where its outputs begin among those of the fused matrix."""
    data: Bytes
    bias: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    matrices: Mapping[str, Sequence[Part]]
    """By the names of their members, `layers.0.q+k+v`; several parts where members are stored differently."""
    vectors: Mapping[str, NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        """What a step over every matrix reads."""
        return sum(part.data.nbytes for parts in self.matrices.values() for part in parts)


def open_prepared(file: Path) -> Prepared | None:
    """None when there is no such file, or not an intact one."""
    try:
        with file.open("rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    return _read(content) if _is_intact(content) else None


def _is_intact(content: mmap.mmap) -> bool:
    if len(content) < len(FORMAT) + _POINTER + _DIGEST or content[: len(FORMAT)] != FORMAT:
        return False
    with memoryview(content) as view:
        return sha256(view[:-_DIGEST]).digest() == content[-_DIGEST:]


def _read(content: mmap.mmap) -> Prepared:
    start = int.from_bytes(content[-_POINTER - _DIGEST : -_DIGEST], "little")
    matrices: dict[str, list[Part]] = {}
    vectors: dict[str, NDArray[np.float32]] = {}

    def floats(at: int, count: int) -> NDArray[np.float32]:
        return np.frombuffer(content, np.float32, count, at)

    for entry in json.loads(content[start : -_POINTER - _DIGEST]):
        at, nbytes = entry["at"]
        if "vector" in entry:
            vectors[entry["vector"]] = floats(at, nbytes // 4)
            continue
        kind, rows, columns, offset = entry["shape"]
        bias = None if entry["bias"] is None else floats(entry["bias"], rows)
        data = np.frombuffer(content, np.uint8, nbytes, at)
        matrices.setdefault(entry["matrix"], []).append(Part(kind, rows, columns, offset, data, bias))
    return Prepared(matrices, vectors)
