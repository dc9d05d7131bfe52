"""Open a model, whatever it is stored as."""

from pathlib import Path

from specialist.models.checkpoint import Checkpoint
from specialist.models.errors import ModelRefused
from specialist.models.gguf.file import open_gguf
from specialist.models.hf.directory import open_directory
from specialist.models.hf.files import PICKLES
from specialist.models.progress import Progress, silent


def open_checkpoint(path: Path, progress: Progress = silent) -> Checkpoint:
    """A Hugging Face directory or a GGUF file, with everything checked before it is returned.

    Raises ModelRefused, whose message says what is wrong and what to do. Weights are mapped, not loaded.
    """
    try:
        if path.is_dir():
            return open_directory(path, progress)
        if path.is_file():
            return _open_file(path, progress)
    except OSError as error:
        raise ModelRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    raise ModelRefused(f"{path}: no such file or directory: give a Hugging Face directory or a GGUF file")


def _open_file(path: Path, progress: Progress) -> Checkpoint:
    if path.suffix in PICKLES:
        raise ModelRefused(f"{path.name}: a pickle can run code when it is read: convert the model to safetensors")
    if path.suffix == ".safetensors":
        raise ModelRefused(f"{path.name}: weights alone are no model: give the directory, with config and tokenizer")
    return open_gguf(path, progress)
