"""Rotary positions."""

import math

import torch
from torch import Tensor

from specialist.models.checkpoint import ModelConfig, Rope


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Return (radians per position, float32 [head_dim / 2]; factor on cos and sin)."""
    rope = config.rope
    base = rope.theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    match rope.kind:
        case "default" | "dynamic":  # dynamic differs only beyond the model's context
            return 1.0 / base, 1.0
        case "linear":
            return 1.0 / base / rope.factor, 1.0
        case "llama3":
            return _llama3(1.0 / base, rope), 1.0
        case "yarn":
            return _yarn(base, rope, config.head_dim), _yarn_attention_factor(rope)


def _llama3(fast: Tensor, rope: Rope) -> Tensor:
    """Stretch long wavelengths, keep short ones, and interpolate those in between."""
    wavelength = 2 * math.pi / fast
    turns = rope.original_context / wavelength
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    mixed = (1 - kept) * fast / rope.factor + kept * fast
    stretched = torch.where(wavelength > rope.original_context / rope.low_freq_factor, fast / rope.factor, mixed)
    return torch.where(wavelength < rope.original_context / rope.high_freq_factor, fast, stretched)


def _yarn(base: Tensor, rope: Rope, head_dim: int) -> Tensor:
    """Keep fast pairs and stretch slow ones, with a ramp in between."""

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(rope.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(head_dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (rope.factor * base) * (1 - kept) + 1.0 / base * kept


def _yarn_attention_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _temperature(rope.factor, rope.mscale) / _temperature(rope.factor, rope.mscale_all_dim)
    return _temperature(rope.factor, 1.0)


def _temperature(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def cos_sin(positions: Tensor, inverse_frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Return float32 [T, 1, head_dim / 2] each, for `positions` [T]; computed once per step for all layers."""
    angles = (positions.float().unsqueeze(-1) * inverse_frequencies).unsqueeze(1)
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, heads, head_dim] to its positions, the first half of a head against the second, in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
