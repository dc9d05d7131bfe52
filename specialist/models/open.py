"""Opens a model of any supported format."""

from pathlib import Path

from specialist.models.checkpoint import Checkpoint
from specialist.models.fields import ModelRefused
from specialist.models.gguf import open_gguf
from specialist.models.huggingface import open_directory
from specialist.models.huggingface_files import PICKLES
from specialist.models.progress import Progress, silent


def open_checkpoint(path: Path, progress: Progress = silent) -> Checkpoint:
    """Open a Hugging Face directory or a GGUF file and map its weights. Raises ModelRefused for an unusable model."""
    try:
        if path.is_dir():
            return open_directory(path, progress)
        if path.suffix in PICKLES and path.is_file():
            raise ModelRefused(f"{path.name}: a pickle can run code when it is read: convert it to safetensors")
        if path.suffix == ".safetensors" and path.is_file():
            raise ModelRefused(f"{path.name}: not a whole model: give the directory with config and tokenizer")
        if path.is_file():
            return open_gguf(path, progress)
    except OSError as error:
        raise ModelRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    raise ModelRefused(f"{path}: no such file or directory: give a Hugging Face directory or a GGUF file")
