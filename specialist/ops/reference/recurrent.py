"""Layers that carry a state from token to token, in PyTorch: causal convolution, selective scan, gated norm. Every
function takes the tokens of one row, at least one, in float32, and returns new tensors."""

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 64
"""Tokens that `chunked_scan` computes at once. Its matrices of weights are [heads, CHUNK, CHUNK]."""


def causal_conv(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mix each channel with the K - 1 inputs before it: y[t] = bias + sum over k of weight[:, k] * x[t - K + 1 + k].

    x: [T, C]; weight: [C, K]; bias: [C]. state: [K - 1, C], the inputs before the first token, oldest first.
    Returns (y [T, C], the state after the last token)."""
    width = weight.shape[1]
    inputs = torch.cat((state, x))
    y = torch.zeros_like(x) if bias is None else bias.expand_as(x)
    for tap in range(width):
        y = y + weight[:, tap] * inputs[tap : tap + len(x)]
    return y, inputs[len(x) :].clone()


def step_sizes(raw: Tensor, bias: Tensor, low: float, high: float) -> Tensor:
    """Return softplus(raw + bias) within [low, high]. raw: [T, H]; bias: [H]."""
    return functional.softplus(raw + bias).clamp(low, high)


def selective_scan(
    x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, d: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Advance each head's state by one token after the other:
    state = exp(dt * a) * state + b outer (dt * x), then y = c @ state + d * x.

    x: [T, H, P]; dt: [T, H], from `step_sizes`; b and c: [T, G, N], each shared by H / G consecutive heads; a and d:
    [H], a negative; state: [H, N, P]. Returns (y [T, H, P], the state after the last token)."""
    b, c = _per_head(b, c, len(a))
    decay = torch.exp(dt * a)
    added = dt.unsqueeze(-1) * x
    y = torch.empty_like(x)
    for t in range(len(x)):
        state = decay[t, :, None, None] * state + b[t].unsqueeze(-1) * added[t].unsqueeze(-2)
        y[t] = (c[t].unsqueeze(-2) @ state).squeeze(-2)
    return y + d.unsqueeze(-1) * x, state


def chunked_scan(
    x: Tensor, dt: Tensor, b: Tensor, c: Tensor, a: Tensor, d: Tensor, state: Tensor, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """Do the same as `selective_scan` within rounding, by matrix products over `chunk` tokens at a time."""
    b, c = _per_head(b, c, len(a))
    added = dt.unsqueeze(-1) * x
    outputs = []
    for first in range(0, len(x), chunk):
        part = slice(first, first + chunk)
        y, state = _scan_chunk(dt[part], b[part], c[part], added[part], a, state)
        outputs.append(y)
    return torch.cat(outputs) + d.unsqueeze(-1) * x, state


def _per_head(b: Tensor, c: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """[T, G, N] -> [T, H, N]."""
    each = heads // b.shape[1]
    return b.repeat_interleave(each, 1), c.repeat_interleave(each, 1)


def _scan_chunk(dt: Tensor, b: Tensor, c: Tensor, added: Tensor, a: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Token t sees what token s added, decayed by all steps in between. The logarithms of decays are summed in float64:
    one of two nearby tokens is a small difference of large sums."""
    total = (dt.double() * a.double()).cumsum(0).T  # [H, L]
    between = total.unsqueeze(-1) - total.unsqueeze(-2)  # [H, t, s]
    future = torch.ones(between.shape[1:], dtype=torch.bool, device=dt.device).triu(1)
    decay = between.masked_fill(future, -torch.inf).exp().to(dt.dtype)
    since_start = total.exp().to(dt.dtype).unsqueeze(-1)  # [H, L, 1]
    until_end = (total[:, -1:] - total).exp().to(dt.dtype).unsqueeze(-1)
    b, c, added = (each.transpose(0, 1) for each in (b, c, added))  # [H, L, N or P]
    y = (decay * (c @ b.mT)) @ added + since_start * (c @ state)
    return y.transpose(0, 1), since_start[:, -1:] * state + (until_end * b).mT @ added


def gated_norm(y: Tensor, gate: Tensor, weight: Tensor, groups: int, eps: float, gate_first: bool) -> Tensor:
    """Gate y by silu(gate), and divide each of `groups` equal parts of a row by its root mean square, times `weight`;
    the gate comes first or last. y and gate: [T, I]; weight: [I]."""
    opened = functional.silu(gate)
    parts = (y * opened if gate_first else y).reshape(len(y), groups, -1)
    normed = (parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)).flatten(1) * weight
    return normed if gate_first else normed * opened
