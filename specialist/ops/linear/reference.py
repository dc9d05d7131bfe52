"""Matrix products as they are defined: every weight a float."""

import torch
from torch import Tensor
from torch.nn import functional

from specialist.models.weight import Affine, Weight, dense


class Dense:
    """Holds every weight as a float of the type it computes in: the oracle, and what a GPU multiplies fastest."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        self.weight = as_float(weight, device, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]"""
        return functional.linear(x, self.weight)


class AsStored:
    """Holds the weight as it is stored and makes floats of it at every call: exact, small and slow."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        self.weight = to(weight, device)
        self.dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]"""
        return functional.linear(x, as_float(self.weight, x.device, self.dtype))


def as_float(weight: Weight, device: torch.device, dtype: torch.dtype) -> Tensor:
    """No copy of what is already there in that type."""
    floats = weight if isinstance(weight, Tensor) else dense(to(weight, device))
    return floats.to(device, dtype)


def to(weight: Weight, device: torch.device) -> Weight:
    if isinstance(weight, Tensor):
        return weight.to(device)
    return Affine(weight.bits, weight.q.to(device), weight.scale.to(device), weight.minimum.to(device))


def embed(weight: Weight, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a matrix: [T] -> [T, K]"""
    if isinstance(weight, Tensor):
        return functional.embedding(tokens, weight).to(dtype)
    parts = (part.index_select(0, tokens) for part in (weight.q, weight.scale, weight.minimum))
    return Affine(weight.bits, *parts).dense().to(dtype)
