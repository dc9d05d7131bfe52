"""Rotary positions: the first half of a head turns against the second."""

import torch
from torch import Tensor


def cos_sin(positions: Tensor, inverse_frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """float32 [T, 1, head_dim / 2] each, for `positions` [T]; made once a step, used by every layer."""
    angles = (positions.float().unsqueeze(-1) * inverse_frequencies).unsqueeze(1)
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, head_dim], turned to its positions, in the type of x and in float32 inside."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
