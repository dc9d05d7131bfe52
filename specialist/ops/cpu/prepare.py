"""Pack a checkpoint for the CPU kernels, once for each model."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from specialist.models.checkpoint import Checkpoint
from specialist.models.progress import Progress, silent
from specialist.models.weight import dense
from specialist.ops.cpu.pack import kind_of, pack
from specialist.ops.cpu.prepared import ALIGNMENT, FORMAT, Part, Prepared, open_prepared
from specialist.ops.linear.stacked import can_stack, stacked

_LAYER_MATRICES = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
_VECTORS = ("attn_norm", "mlp_norm", "q_norm", "k_norm")


def prepare(checkpoint: Checkpoint, cache: Path, progress: Progress = silent) -> Prepared:
    """Map the packed weights, packing them first unless an intact copy is in the cache."""
    file = cache / "weights" / f"{checkpoint.revision}.{FORMAT.strip().decode()}"
    prepared = open_prepared(file)
    if prepared is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(file, checkpoint, progress)
        prepared = open_prepared(file)
    if prepared is None:
        raise OSError(f"{file} cannot be read back: is the disk full or failing?")
    return prepared


def _write_whole(file: Path, checkpoint: Checkpoint, progress: Progress) -> None:
    """Nobody ever sees half a file under its name; the last of two writers wins, with the same content."""
    handle, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            _Writer(out).write(checkpoint, progress)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(file)
    finally:
        Path(temporary).unlink(missing_ok=True)


class _Writer:
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
        for members in _LAYER_MATRICES:
            yield f"layers.{layer}.", members


def _parts(checkpoint: Checkpoint, prefix: str, members: Sequence[str]) -> Iterator[Part]:
    """One part for all members when they are stored alike."""
    weights = [checkpoint.weights[prefix + name] for name in members]
    weights = [weight.float() if isinstance(weight, torch.Tensor) else weight for weight in weights]
    biases = [_bias(checkpoint, f"{prefix}{name}_bias") for name in members]
    if can_stack(weights) and len({bias is None for bias in biases}) == 1:
        weights = [stacked(weights)]
        biases = [None if biases[0] is None else np.concatenate([bias for bias in biases if bias is not None])]
    offset = 0
    for weight, bias in zip(weights, biases, strict=True):
        rows, columns = weight.shape
        yield Part(kind_of(weight), rows, columns, offset, pack(weight), bias)
        offset += rows


def _bias(checkpoint: Checkpoint, name: str) -> NDArray[np.float32] | None:
    return _floats(checkpoint, name) if name in checkpoint.weights else None


def _floats(checkpoint: Checkpoint, name: str) -> NDArray[np.float32]:
    floats: NDArray[np.float32] = dense(checkpoint.weights[name]).numpy()
    return floats
