"""Attention over keys and values in blocks."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


class ContextView(NamedTuple):
    """The contexts of R consecutive rows with Q tokens each. Built once per step for all layers."""

    tokens: slice  # part of the step's T tokens
    num_rows: int
    slots: Tensor  # [R, L]: slots of each context. After its end, the last slot is repeated: finite and masked.
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
    """Return a view for each run of rows with the same number of tokens: one for a decode step, one per row for chunks.
    Shapes come from CPU tensors, so that nothing waits for a device."""
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
    """bool [R, 1, Q, L]: a query sees itself and earlier positions within the window."""
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
    """On CUDA, repeat keys and values for every head: of the fast kernels that accept a mask, only cuDNN's share them,
    and those spend about 40 ms on planning at every new length."""
    if not q.is_cuda:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    with sdpa_kernel(_BACKENDS):
        return functional.scaled_dot_product_attention(q, spread(k, q), spread(v, q), attn_mask=visible)


def spread(shared: Tensor, q: Tensor) -> Tensor:
    """Repeat [R, kv heads, L, D] for each head of q [R, heads, Q, D]."""
    return shared.repeat_interleave(q.shape[1] // shared.shape[1], 1)
