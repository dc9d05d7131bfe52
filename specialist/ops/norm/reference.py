"""Root mean square norms."""

from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension, in float32 inside: x / sqrt(mean(x * x) + eps) * weight, in the type of x."""
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(the norm of x + residual, x + residual)"""
    total = x + residual
    return rms_norm(total, weight, eps), total
