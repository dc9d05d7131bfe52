"""A Hugging Face directory as a checkpoint."""

from pathlib import Path

from specialist.models.checkpoint import Checkpoint
from specialist.models.checks import check_config, check_finite, check_shapes
from specialist.models.hf.config import read_config
from specialist.models.hf.files import Directory
from specialist.models.hf.tensors import read_index, weights_of, without_tied_head
from specialist.models.hf.vocabulary import read_vocabulary
from specialist.models.progress import Progress
from specialist.models.revision import revision_of

WORDS = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def open_directory(path: Path, progress: Progress) -> Checkpoint:
    directory = Directory(path)
    fields = directory.json("config.json")
    config = read_config(fields)
    check_config(config, fields.source)
    vocabulary = read_vocabulary(directory, fields)
    tensors = read_index(directory)
    if config.tied_head:
        tensors = without_tied_head(tensors, directory.name)
    check_shapes(config, {name: stored.shape for name, stored in tensors.items()}, directory.name)
    check_finite({name: stored.parts for name, stored in tensors.items()}, directory.name, progress)
    names = ["config.json", *(name for name in WORDS if directory.has(name)), *directory.shards()]
    revision = revision_of({name: directory.file(name) for name in names}, progress)
    return Checkpoint(config, vocabulary, revision, weights_of(tensors))
