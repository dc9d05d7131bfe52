"""Opens a model of any supported format."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from specialist.models.checkpoint import Checkpoint
from specialist.models.checks import Inspection
from specialist.models.fields import ModelRefused
from specialist.models.gguf import inspect_gguf, open_gguf
from specialist.models.hub import PICKLES
from specialist.models.huggingface import inspect_directory, open_directory
from specialist.models.progress import Progress, silent

_OpenedT = TypeVar("_OpenedT")


def open_checkpoint(path: Path, progress: Progress = silent) -> Checkpoint:
    """Open a Hugging Face directory or a GGUF file and map its weights. Raises ModelRefused for an unusable model."""
    return _open(path, lambda: open_directory(path, progress), lambda: open_gguf(path, progress))


def inspect_model(path: Path) -> Inspection:
    """Check everything that `open_checkpoint` checks except the values of the weights, and collect all problems."""
    refused = Inspection()
    found = refused.attempt(lambda: _open(path, lambda: inspect_directory(path), lambda: inspect_gguf(path)))
    return found or refused


def _open(path: Path, directory: Callable[[], _OpenedT], gguf: Callable[[], _OpenedT]) -> _OpenedT:
    try:
        if path.is_dir():
            return directory()
        if path.suffix in PICKLES and path.is_file():
            raise ModelRefused(f"{path.name}: a pickle can run code when it is read: convert it to safetensors")
        if path.suffix == ".safetensors" and path.is_file():
            raise ModelRefused(f"{path.name}: not a whole model: give the directory with config and tokenizer")
        if path.is_file():
            return gguf()
    except OSError as error:
        raise ModelRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    raise ModelRefused(f"{path}: no such file or directory: give a Hugging Face directory or a GGUF file")
