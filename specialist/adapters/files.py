"""The two files of a PEFT directory, read whole and bounded: nothing on disk can change what has been checked."""

import json
from pathlib import Path
from stat import S_ISREG
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from specialist.adapters.errors import AdapterRefused

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20


def read_config(directory: Path) -> dict[str, Any]:
    content = _read(directory, CONFIG, MAX_CONFIG_BYTES)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(CONFIG, f"is no JSON: {error!s:.80}") from error
    if not isinstance(fields, dict):
        raise AdapterRefused(CONFIG, f"must hold an object, got {type(fields).__name__}")
    return fields


def read_tensors(directory: Path, max_bytes: int) -> dict[str, Tensor]:
    if not (directory / TENSORS).exists() and (directory / "adapter_model.bin").exists():
        raise AdapterRefused("adapter_model.bin", f"a pickle file is never opened: convert it to {TENSORS}")
    content = _read(directory, TENSORS, max_bytes)
    try:
        return load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise AdapterRefused(TENSORS, f"is truncated or damaged: {error!s:.120}") from error


def _read(directory: Path, name: str, max_bytes: int) -> bytes:
    path = directory / name
    try:
        place = path.resolve(strict=True)
        if not place.is_relative_to(directory.resolve()):
            raise AdapterRefused(name, "is a link that leads out of its directory: put the file itself there")
        if not S_ISREG(place.stat().st_mode):
            raise AdapterRefused(name, "is no regular file")
        with place.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, AdapterRefused):
            raise
        raise AdapterRefused(name, f"cannot be read: {error!s:.200}") from error
    if len(content) > max_bytes:
        raise AdapterRefused(name, f"is larger than {max_bytes:,} bytes, the most that fits this model")
    return content
