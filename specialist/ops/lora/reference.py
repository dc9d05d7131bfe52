"""Low-rank additions, beside the base weights and never merged into them."""

from torch import Tensor


def apply(y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """y [T, out] += scale * (x [T, in] @ a.T) @ b.T, in place; a is [rank, in], b is [out, rank]."""
    y.addmm_(x @ a.T, b.T, alpha=scale)
