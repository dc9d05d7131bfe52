"""What every model must satisfy before it is served, whatever file it came from."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from specialist.models.checkpoint import expected_shapes
from specialist.models.config import ModelConfig
from specialist.models.errors import ModelRefused
from specialist.models.progress import Progress

MAX_CONTEXT = 1 << 24
MAX_LAYERS = 4096
SCANNED_AT_ONCE = 1 << 22
"""Elements; bounds what a scan allocates."""


def check_config(config: ModelConfig, source: str) -> None:
    """Sizes that belong together do."""
    if config.num_heads % config.num_kv_heads:
        raise ModelRefused(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelRefused(f"{source}: head size must be even for rotary positions, got {config.head_dim}")
    for layer, window in enumerate(config.windows):
        if window is not None and window < 1:
            raise ModelRefused(f"{source}: the window of layer {layer} must be at least 1, got {window}")


def check_shapes(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Every tensor the config promises is there in its shape, and no other."""
    unclaimed = set(shapes)
    for name, shape in expected_shapes(config):
        found = shapes.get(name)
        if found is None:
            raise ModelRefused(f"{source}: {name} is missing: the download or conversion is incomplete, repeat it")
        if found != shape:
            raise ModelRefused(
                f"{source}: {name} has shape {list(found)}, but the config says {list(shape)}: "
                "config and weights are not of one model, fetch both again"
            )
        unclaimed.discard(name)
    if unclaimed:
        raise ModelRefused(
            f"{source}: tensors that such a model does not have: {', '.join(sorted(unclaimed)[:5])}"
            f"{' ...' if len(unclaimed) > 5 else ''} ({len(unclaimed)} in all): config and weights are not of one model"
        )


def check_finite(weights: Mapping[str, Callable[[], Iterable[Tensor]]], source: str, progress: Progress) -> None:
    """Every weight, by the tensors that decide it: NaN or infinity anywhere would poison every answer."""
    for done, (name, parts) in enumerate(weights.items(), start=1):
        if not all(finite(part) for part in parts()):
            raise ModelRefused(f"{source}: {name} holds NaN or infinity: the file is damaged, fetch it again")
        progress("checking weights", done, len(weights))


def finite(tensor: Tensor) -> bool:
    return all(bool(torch.isfinite(part).all()) for part in torch.split(tensor.flatten(), SCANNED_AT_ONCE))


def check_ids(ids: Iterable[int], vocab_size: int, source: str) -> None:
    """The words are the model's: every id has a row in the embedding."""
    highest = max(ids, default=-1)
    if highest >= vocab_size:
        raise ModelRefused(
            f"{source}: the tokenizer has id {highest}, but the model has rows for {vocab_size} only: "
            "tokenizer and weights are not of one model"
        )
