"""Models for measuring drafts: the first layers of a model as its draft model, and models that resemble these."""

from dataclasses import replace
from hashlib import sha256

from specialist.models.checkpoint import Checkpoint
from specialist.models.weights import Affine, Weight


def first_layers(checkpoint: Checkpoint, num_layers: int) -> Checkpoint:
    """Return the model that ends after its first layers: a draft model that needs no training."""
    config = replace(checkpoint.config, num_layers=num_layers, windows=checkpoint.config.windows[:num_layers])
    weights = {name: weight for name, weight in checkpoint.weights.items() if _layer(name) < num_layers}
    return Checkpoint(config, checkpoint.vocabulary, _derived(checkpoint, f"first {num_layers}"), weights)


def with_faint_layers(checkpoint: Checkpoint, num_layers: int, scale: float) -> Checkpoint:
    """Return the model with everything that the layers after the first ones add multiplied by `scale`: the smaller it
    is, the more often the first layers alone are right. It takes as long as the model."""
    faint = {
        f"layers.{layer}.{name}" for layer in range(num_layers, checkpoint.config.num_layers) for name in ("o", "down")
    }
    weights = {name: _scaled(weight, scale) if name in faint else weight for name, weight in checkpoint.weights.items()}
    return Checkpoint(checkpoint.config, checkpoint.vocabulary, _derived(checkpoint, f"{num_layers} {scale}"), weights)


def _scaled(weight: Weight, scale: float) -> Weight:
    if isinstance(weight, Affine):
        return Affine(weight.bits, weight.q, weight.scale * scale, weight.minimum * scale)
    return weight * scale


def _layer(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("layers.") else -1


def _derived(checkpoint: Checkpoint, how: str) -> str:
    return sha256(f"{checkpoint.revision} {how}".encode()).hexdigest()
