"""A model's weights packed for the CPU kernels, in one file that all replicas of the model map.

The weights are in tiles of 16 rows, see `linear.hpp`. The file has entries aligned to cache lines, a JSON table of
them, the position of the table (8 bytes), and the sha256 of everything before it.
"""

import json
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specialist.models.checkpoint import Checkpoint, ModelConfig
from specialist.models.progress import Progress, silent
from specialist.models.weights import GROUP, Affine, Weight, dense
from specialist.ops.reference.layers import can_stack, stack_weights

LANES = 16
PackKind = Literal[0, 4, 8, 32]
Bytes = NDArray[np.uint8]


def pack_kind(weight: Weight) -> PackKind:
    return weight.bits if isinstance(weight, Affine) else 32


def pack(weight: Weight) -> Bytes:
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
    """Repack [tile, row, group, 32] as [tile, group, quad, row, 4]."""
    tiles, _, groups, _ = q.shape
    return q.reshape(tiles, LANES, groups, 8, 4).transpose(0, 2, 3, 1, 4).reshape(tiles, groups, -1)


def _nibbles(q: Bytes) -> Bytes:
    """Do the same as `_bytes`, with quad 2j in the low nibbles and quad 2j + 1 in the high nibbles."""
    tiles, _, groups, _ = q.shape
    quads = q.reshape(tiles, LANES, groups, 4, 2, 4).transpose(0, 2, 3, 4, 1, 5)
    low, high = quads[:, :, :, 0], quads[:, :, :, 1]
    return np.bitwise_or(low, np.left_shift(high, 4, dtype=np.uint8), dtype=np.uint8).reshape(tiles, groups, -1)


def _halves(values: Tensor, rows: int) -> Bytes:
    """Repack [rows, groups] of float16 as [tile, group, 32 bytes]."""
    tiles = _whole_tiles(values.numpy(), rows).reshape(-1, LANES, values.shape[1])
    return np.ascontiguousarray(tiles.transpose(0, 2, 1)).view(np.uint8)


def _whole_tiles(values: NDArray[Any], rows: int) -> NDArray[Any]:
    return np.pad(values, ((0, -rows % LANES), (0, 0)))


FORMAT = b"octet-packed-2\n"
ALIGNMENT = 64  # so that a vector never crosses a cache line
_POINTER, _DIGEST = 8, 32


@dataclass(frozen=True, slots=True, eq=False)
class PackedMatrix:
    kind: PackKind
    rows: int
    columns: int
    offset: int  # index of its first output among the outputs of the fused matrix
    data: Bytes
    bias: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    matrices: Mapping[str, Sequence[PackedMatrix]]
    """Keyed by the names of their weights, such as `layers.0.q+k+v`; several matrices if these cannot be stacked."""
    vectors: Mapping[str, NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        return sum(part.data.nbytes for parts in self.matrices.values() for part in parts)


def open_packed(file: Path) -> PackedWeights | None:
    """Map the packed file. Return None if it does not exist or is damaged."""
    try:
        with file.open("rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if len(content) < len(FORMAT) + _POINTER + _DIGEST or content[: len(FORMAT)] != FORMAT:
        return None
    with memoryview(content) as view:
        is_intact = sha256(view[:-_DIGEST]).digest() == content[-_DIGEST:]
    return _read(content) if is_intact else None


def _read(content: mmap.mmap) -> PackedWeights:
    start = int.from_bytes(content[-_POINTER - _DIGEST : -_DIGEST], "little")
    matrices: dict[str, list[PackedMatrix]] = {}
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
        matrices.setdefault(entry["matrix"], []).append(PackedMatrix(kind, rows, columns, offset, data, bias))
    return PackedWeights(matrices, vectors)


_VECTORS = (
    *("attn_norm", "mlp_norm", "q_norm", "k_norm", "mixer_norm", "gate_norm"),
    *("conv", "conv_bias", "step_bias", "log_decay", "skip"),
)


def pack_checkpoint(checkpoint: Checkpoint, cache: Path, progress: Progress = silent) -> PackedWeights:
    """Return the packed weights, mapped from the cache. If the cache has no intact copy, pack them first."""
    file = cache / "weights" / f"{checkpoint.revision}.{FORMAT.strip().decode()}"
    prepared = open_packed(file)
    if prepared is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(file, checkpoint, progress)
        prepared = open_packed(file)
    if prepared is None:
        raise OSError(f"{file} cannot be read back: is the disk full or failing?")
    return prepared


def _write_atomically(file: Path, checkpoint: Checkpoint, progress: Progress) -> None:
    handle, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            _PackedWriter(out).write(checkpoint, progress)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(file)
    finally:
        Path(temporary).unlink(missing_ok=True)


class _PackedWriter:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._hasher = sha256()
        self._size = 0

    def write(self, checkpoint: Checkpoint, progress: Progress) -> None:
        self._append(FORMAT)
        table = [*self._matrices(checkpoint, progress), *self._vectors(checkpoint)]
        start = self._append(json.dumps(table).encode())
        pointer = start.to_bytes(8, "little")
        self._hasher.update(pointer)
        self._out.write(pointer + self._hasher.digest())

    def _append(self, data: bytes | memoryview) -> int:
        padding = bytes(-self._size % ALIGNMENT)
        start = self._size + len(padding)
        for piece in (padding, data):
            self._out.write(piece)
            self._hasher.update(piece)
        self._size = start + len(data)
        return start

    def _matrices(self, checkpoint: Checkpoint, progress: Progress) -> Iterator[dict[str, Any]]:
        wanted = list(_matrix_names(checkpoint))
        for done, (prefix, members) in enumerate(wanted):
            progress("packing weights", done, len(wanted))
            for part in _parts(checkpoint, prefix, members):
                yield {
                    "matrix": prefix + "+".join(members),
                    "shape": [part.kind, part.rows, part.columns, part.offset],
                    "at": [self._append(part.data.data), part.data.nbytes],
                    "bias": None if part.bias is None else self._append(part.bias.tobytes()),
                }
        progress("packing weights", len(wanted), len(wanted))

    def _vectors(self, checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
        prefixes = [f"layers.{i}." for i in range(checkpoint.config.num_layers)]
        for name in ("norm", *(prefix + name for prefix in prefixes for name in _VECTORS)):
            if name in checkpoint.weights:
                data = _floats(checkpoint, name).tobytes()
                yield {"vector": name, "at": [self._append(data), len(data)]}


def _matrix_names(checkpoint: Checkpoint) -> Iterator[tuple[str, Sequence[str]]]:
    yield "", ("embed",)
    if not checkpoint.config.tied_head:
        yield "", ("head",)
    for layer in range(checkpoint.config.num_layers):
        for members in layer_matrices(checkpoint.config, layer):
            yield f"layers.{layer}.", members


def layer_matrices(config: ModelConfig, layer: int) -> Iterator[Sequence[str]]:
    """Yield the matrices of a layer. Those of one group have the same input, and are packed as one."""
    parts = config.parts_of(layer)
    if "attention" in parts or "shared" in parts:
        yield "q", "k", "v"
        yield ("o",)
    if "mlp" in parts or "shared" in parts:
        yield ("gate", "up") if config.gated_mlp else ("up",)
        yield ("down",)
    if "shared" in parts:
        yield ("link",)
    if "ssm" in parts or "conv" in parts:
        yield ("in",)
        yield ("out",)


def _parts(checkpoint: Checkpoint, prefix: str, members: Sequence[str]) -> Iterator[PackedMatrix]:
    weights = [checkpoint.weights[prefix + name] for name in members]
    weights = [weight.float() if isinstance(weight, torch.Tensor) else weight for weight in weights]
    names = [f"{prefix}{name}_bias" for name in members]
    biases = [_floats(checkpoint, name) if name in checkpoint.weights else None for name in names]
    if can_stack(weights) and len({bias is None for bias in biases}) == 1:
        weights = [stack_weights(weights)]
        biases = [None if biases[0] is None else np.concatenate([bias for bias in biases if bias is not None])]
    offset = 0
    for weight, bias in zip(weights, biases, strict=True):
        rows, columns = weight.shape
        yield PackedMatrix(pack_kind(weight), rows, columns, offset, pack(weight), bias)
        offset += rows


def _floats(checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
    floats: NDArray[np.float32] = dense(checkpoint.weights[name]).contiguous().numpy()
    return floats
