"""Layers of a model in PyTorch: matrix products, norms, rotary positions, and attention over blocks of KV memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from specialist.models.checkpoint import ModelConfig, Rope
from specialist.models.weights import Affine, Weight, dense

Linear = Callable[[Tensor], Tensor]  # [T, K], T at least 1 -> a new tensor [T, N] of the same type
MakeLinear = Callable[[Weight, torch.device, torch.dtype], Linear]
"""Prepares a weight [N, K] for products in this type on this device. Raises ValueError if the kernel cannot do so."""


class Dense:
    """Keeps every weight as a float of the compute type: the reference, and the fastest on a GPU."""

    def __init__(self, weight: Weight, device: torch.device, dtype: torch.dtype) -> None:
        floats = weight if isinstance(weight, Tensor) else dense(to(weight, device))
        self.weight = floats.to(device, dtype)  # not copied if it already has the device and type

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        return functional.linear(x, self.weight)


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
    """Return one taller matrix with the rows of all. Raises ValueError for different storage types."""
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
    """Return x / sqrt(mean(x * x) + eps) * weight over the last dimension, in the type of x; computed in float32."""
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (norm of x + residual, x + residual)."""
    total = x + residual
    return rms_norm(total, weight, eps), total


_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


class ContextView(NamedTuple):
    """The contexts of R consecutive rows with Q tokens each. Built once per step for all layers."""

    tokens: slice  # part of the step's T tokens
    num_rows: int
    slots: Tensor  # [R, L]: slots of each context, padded with its last slot, whose values are finite and masked
    visible: Tensor | None  # bool [R, 1, Q, L]; None if every query sees all positions


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write k, v [T, kv heads, D] to `slots` int64 [T] of caches [blocks, block size, kv heads, D]."""
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)


def views(
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    block_size: int,
    window: int | None,
    device: torch.device,
) -> list[ContextView]:
    """Return a view for each run of rows with equally many tokens: one in a decode step, usually one per row in a
    prefill step. Shapes come from CPU tensors, so that nothing waits for a device."""
    starts, contexts = query_start.tolist(), context_lens.tolist()
    found = []
    for first, stop, num_queries in _runs(starts):
        longest = max(contexts[first:stop])
        rows = context_lens[first:stop].to(device, torch.int64, non_blocking=True).unsqueeze(1)  # [R, 1]
        tables = block_tables[first:stop].to(device, torch.int64, non_blocking=True)
        positions = torch.arange(longest, device=device)
        inside = torch.minimum(positions, rows - 1)  # [R, L]
        slots = tables.gather(1, inside // block_size) * block_size + inside % block_size
        sees_all = num_queries == 1 and window is None and min(contexts[first:stop]) == longest
        visible = None if sees_all else _visible(positions, rows, num_queries, window)
        found.append(ContextView(slice(starts[first], starts[stop]), stop - first, slots, visible))
    return found


def _runs(starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, row after the last, tokens per row) for every run of rows of the same length."""
    first = 0
    for length, rows in groupby(stop - start for start, stop in pairwise(starts)):
        stop = first + len(list(rows))
        yield first, stop, length
        first = stop


def _visible(positions: Tensor, context_lens: Tensor, num_queries: int, window: int | None) -> Tensor:
    """Return a bool mask [R, 1, Q, L]: a query sees itself and earlier positions within the window."""
    queries = context_lens - num_queries + torch.arange(num_queries, device=positions.device)  # [R, Q]
    distance = queries.unsqueeze(-1) - positions  # [R, Q, L]
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return visible.unsqueeze(1)


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, views: Sequence[ContextView]) -> Tensor:
    """Attend with q [T, heads, D] over the caches, which include this step's keys and values. Returns [T, heads, D]."""
    parts = [_attend(q[view.tokens], k_cache, v_cache, view) for view in views]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, view: ContextView) -> Tensor:
    rows, context = view.slots.shape
    _, _, kv_heads, head_dim = k_cache.shape
    flat = view.slots.view(-1)
    k = k_cache.view(-1, kv_heads, head_dim).index_select(0, flat).view(rows, context, kv_heads, head_dim)
    v = v_cache.view(-1, kv_heads, head_dim).index_select(0, flat).view(rows, context, kv_heads, head_dim)
    queries = q.view(rows, -1, *q.shape[1:]).transpose(1, 2)  # [R, heads, Q, D]
    mixed = _mixed(queries, k.transpose(1, 2), v.transpose(1, 2), view.visible)
    return mixed.transpose(1, 2).reshape(q.shape)


def _mixed(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Return the attention output. On CUDA, keys and values are repeated for every head: of the fast kernels that
    accept a mask, only cuDNN's need no copies, and those spend about 40 ms on planning for every new length."""
    if not q.is_cuda:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    with sdpa_kernel(_BACKENDS):
        return functional.scaled_dot_product_attention(q, spread(k, q), spread(v, q), attn_mask=visible)


def spread(shared: Tensor, q: Tensor) -> Tensor:
    """Repeat keys or values [R, kv heads, L, D] for each head of q [R, heads, Q, D]."""
    return shared.repeat_interleave(q.shape[1] // shared.shape[1], 1)


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Return the radians per position, float32 [rotary_dim / 2], and the factor by which cos and sin are multiplied."""
    rope = config.rope
    size = config.head_dim if config.rotary_dim is None else config.rotary_dim
    base = rope.theta ** (torch.arange(0, size, 2).float() / max(1, size))
    match rope.kind:
        case "default" | "dynamic":  # dynamic differs only beyond the model's context
            return 1.0 / base, 1.0
        case "linear":
            return 1.0 / base / rope.factor, 1.0
        case "llama3":
            return _llama3(1.0 / base, rope), 1.0
        case "yarn":
            return _yarn(base, rope, size), _yarn_attention_factor(rope)


def _llama3(fast: Tensor, rope: Rope) -> Tensor:
    """Return the frequencies with long wavelengths stretched, short ones kept, and those in between interpolated."""
    turns = rope.original_context / (2 * math.pi / fast)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * fast / rope.factor + kept * fast


def _yarn(base: Tensor, rope: Rope, head_dim: int) -> Tensor:
    """Return the frequencies with fast pairs kept and slow ones stretched, with a ramp in between."""

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
    """Return cos and sin, float32 [T, 1, head_dim / 2] each, for `positions` [T]. All layers of a step share them."""
    angles = (positions.float().unsqueeze(-1) * inverse_frequencies).unsqueeze(1)
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, heads, head_dim] by the given angles in float32: of the elements that are rotated, which come first
    in a head, the first half against the second."""
    half = cos.shape[-1]
    first, second, rest = torch.split(x.float(), [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1).to(x.dtype)
