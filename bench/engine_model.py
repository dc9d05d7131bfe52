"""The model that every system is measured on."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BenchModel:
    path: Path
    vocab_size: int
    revision: str
    hf_directory: Callable[[], Path]
    """Writes it out in float32, once, for peers that do not read it as it is."""


def open_model(path: Path, cache: Path) -> BenchModel:
    """Raises ModelRefused."""
    from bench.peers.hf_directory import write_hf_directory
    from specialist.models.open import open_checkpoint

    checkpoint = open_checkpoint(path)
    return BenchModel(
        path.resolve(),
        checkpoint.config.vocab_size,
        checkpoint.revision,
        lambda: write_hf_directory(checkpoint, cache / "peers" / "models"),
    )
