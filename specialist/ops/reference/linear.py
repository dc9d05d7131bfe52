"""Matrix products over floats, low-rank additions and norms."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from specialist.models.weights import Affine, Weight, dense


class Linear(Protocol):
    def __call__(self, x: Tensor, /) -> Tensor:
        """[T, K], T at least 1 -> a new tensor [T, N] of the same type."""


class MakeLinear(Protocol):
    def __call__(self, weight: Weight, device: torch.device, dtype: torch.dtype, /) -> Linear:
        """Prepare a weight [N, K] for products in `dtype` on `device`. Raises ValueError if the kernel cannot."""


class Dense:
    """Keeps every weight as a float of the compute type: the reference, and the fastest on a GPU."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        self.weight = as_float(weight, device, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        return functional.linear(x, self.weight)


def as_float(weight: Weight, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Convert a weight; a weight that already has the device and type is not copied."""
    floats = weight if isinstance(weight, Tensor) else dense(to(weight, device))
    return floats.to(device, dtype)


def to(weight: Weight, device: torch.device) -> Weight:
    if isinstance(weight, Tensor):
        return weight.to(device)
    return Affine(weight.bits, weight.q.to(device), weight.scale.to(device), weight.minimum.to(device))


def embed(weight: Weight, tokens: Tensor, dtype: torch.dtype) -> Tensor:
    """Look up rows of a matrix: [T] -> [T, K]."""
    if isinstance(weight, Tensor):
        return functional.embedding(tokens, weight).to(dtype)
    parts = (part.index_select(0, tokens) for part in (weight.q, weight.scale, weight.minimum))
    return Affine(weight.bits, *parts).dense().to(dtype)


def can_stack(weights: Sequence[Weight]) -> bool:
    return len({weight.bits if isinstance(weight, Affine) else weight.dtype for weight in weights}) == 1


def stack_weights(weights: Sequence[Weight]) -> Weight:
    """Copy the matrices into one taller matrix. Raises ValueError for different storage types."""
    if not can_stack(weights):
        stored = [f"{weight.bits} bits" if isinstance(weight, Affine) else str(weight.dtype) for weight in weights]
        raise ValueError(f"matrices of different storage types cannot be stacked: {stored}")
    if len(weights) == 1:
        return weights[0]
    floats = [weight for weight in weights if isinstance(weight, Tensor)]
    if floats:
        return torch.cat(floats)
    affine = [weight for weight in weights if isinstance(weight, Affine)]
    q, scale, minimum = (torch.cat(parts) for parts in zip(*((w.q, w.scale, w.minimum) for w in affine), strict=True))
    return Affine(affine[0].bits, q, scale, minimum)


def add_low_rank(y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """y [T, out] += scale * (x [T, in] @ a.T) @ b.T, in place; a is [rank, in], b is [out, rank]."""
    y.addmm_(x @ a.T, b.T, alpha=scale)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x * x) + eps) * weight over the last dimension, computed in float32, in the type of x."""
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (norm of x + residual, x + residual)."""
    total = x + residual
    return rms_norm(total, weight, eps), total
