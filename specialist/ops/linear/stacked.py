"""Several matrices with the same input as one taller matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specialist.models.weight import Affine, Weight


def can_stack(weights: Sequence[Weight]) -> bool:
    """Whether they are stored alike."""
    return len({weight.bits if isinstance(weight, Affine) else weight.dtype for weight in weights}) == 1


def stacked(weights: Sequence[Weight]) -> Weight:
    """A copy, rows in order. Raises ValueError when they are not stored alike."""
    if not can_stack(weights):
        raise ValueError(f"matrices stored differently cannot be stacked: {[_storage(weight) for weight in weights]}")
    if len(weights) == 1:
        return weights[0]
    floats = [weight for weight in weights if isinstance(weight, Tensor)]
    if floats:
        return torch.cat(floats)
    affine = [weight for weight in weights if isinstance(weight, Affine)]
    return Affine(
        affine[0].bits,
        torch.cat([weight.q for weight in affine]),
        torch.cat([weight.scale for weight in affine]),
        torch.cat([weight.minimum for weight in affine]),
    )


def _storage(weight: Weight) -> str:
    return f"{weight.bits} bits" if isinstance(weight, Affine) else str(weight.dtype)
