"""A GGUF file as a checkpoint."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from specialist.models.checkpoint import Checkpoint
from specialist.models.checks import check_config, check_finite, check_shapes
from specialist.models.config import ModelConfig
from specialist.models.errors import ModelRefused
from specialist.models.fields import Fields
from specialist.models.gguf.blocks import PLAIN, read_scales, read_weight
from specialist.models.gguf.config import llama3_rope, read_config
from specialist.models.gguf.reader import Gguf, read_gguf
from specialist.models.gguf.tensors import ROPE_FACTORS, check_kinds, named, weights_of
from specialist.models.gguf.vocabulary import read_vocabulary
from specialist.models.progress import Progress
from specialist.models.revision import revision_of
from specialist.models.weight import dense


def open_gguf(path: Path, progress: Progress) -> Checkpoint:
    source = path.name
    file = read_gguf(path)
    fields = Fields(source, file.metadata)
    vocabulary, vocab_size = read_vocabulary(fields)
    config = _with_rope_factors(read_config(fields, file.tensors, vocab_size), file, source)
    check_config(config, source)
    tensors = named(file.tensors, source)
    check_shapes(config, {name: stored.shape for name, stored in tensors.items()}, source)
    check_kinds(tensors, source)
    check_finite({name: partial(read_scales, stored) for name, stored in tensors.items()}, source, progress)
    return Checkpoint(config, vocabulary, revision_of({"gguf": path}, progress), weights_of(tensors, config))


def _with_rope_factors(config: ModelConfig, file: Gguf, source: str) -> ModelConfig:
    stored = file.tensors.get(ROPE_FACTORS)
    if stored is None:
        return config
    if stored.kind.name not in PLAIN:
        raise ModelRefused(f"{source}: {ROPE_FACTORS} is stored as {stored.kind.name}; it must be F32")
    return replace(config, rope=llama3_rope(config.rope, config.head_dim, dense(read_weight(stored)), source))
