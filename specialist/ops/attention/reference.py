"""Attention over keys and values that lie in blocks."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

_PLANLESS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


class View(NamedTuple):
    """What R neighbouring rows with Q tokens each attend over. Made once a step, used by every layer."""

    tokens: slice
    """Of the step's T."""
    num_rows: int
    slots: Tensor
    """[R, L]: slots of each context. Behind its end the last one is repeated: finite, and hidden."""
    visible: Tensor | None
    """bool [R, 1, Q, L], or None where every query sees everything."""


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """k, v [T, kv heads, D] to `slots` int64 [T] of caches [blocks, block size, kv heads, D]."""
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)


def views(
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    block_size: int,
    window: int | None,
    device: torch.device,
) -> list[View]:
    """One for each run of rows that have the same number of tokens: one for a decode step, one a row for chunks.

    Shapes are decided here, from CPU tensors, so that nothing waits for a device.
    """
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
        found.append(View(slice(starts[first], starts[stop]), stop - first, slots, visible))
    return found


def _runs(starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first row, row behind the last, tokens of each) for every run of rows of one length."""
    first = 0
    for length, rows in groupby(stop - start for start, stop in pairwise(starts)):
        stop = first + len(list(rows))
        yield first, stop, length
        first = stop


def _visible(positions: Tensor, context_lens: Tensor, num_queries: int, window: int | None) -> Tensor:
    """bool [R, 1, Q, L]: a query sees itself and what is before it, no further back than the window."""
    queries = context_lens - num_queries + torch.arange(num_queries, device=positions.device)  # [R, Q]
    distance = queries.unsqueeze(-1) - positions  # [R, Q, L]
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return visible.unsqueeze(1)


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, views: Sequence[View]) -> Tensor:
    """q [T, heads, D] over the caches, this step's keys and values written; [T, heads, D]."""
    parts = [_attend(q[view.tokens], k_cache, v_cache, view) for view in views]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, view: View) -> Tensor:
    rows, context = view.slots.shape
    _, _, kv_heads, head_dim = k_cache.shape
    flat = view.slots.view(-1)
    k = k_cache.view(-1, kv_heads, head_dim).index_select(0, flat).view(rows, context, kv_heads, head_dim)
    v = v_cache.view(-1, kv_heads, head_dim).index_select(0, flat).view(rows, context, kv_heads, head_dim)
    queries = q.view(rows, -1, *q.shape[1:]).transpose(1, 2)  # [R, heads, Q, D]
    mixed = _mixed(queries, k.transpose(1, 2), v.transpose(1, 2), view.visible)
    return mixed.transpose(1, 2).reshape(q.shape)


def _mixed(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """On CUDA every head gets keys and values of its own: of the fast kernels that take a mask, none shares them but
    cuDNN's, which plan for some 40 ms whenever they see a new length."""
    if not q.is_cuda:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    with sdpa_kernel(_PLANLESS):
        return functional.scaled_dot_product_attention(q, spread(k, q), spread(v, q), attn_mask=visible)


def spread(shared: Tensor, q: Tensor) -> Tensor:
    """[R, kv heads, L, D] to one for each head of q [R, heads, Q, D]."""
    return shared.repeat_interleave(q.shape[1] // shared.shape[1], 1)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    window: int | None = None,
) -> Tensor:
    """Chunks of prompts behind what is cached, decode steps and drafts to verify, in one call.

    q [T, heads, D]; caches [blocks, block size, kv heads, D]; on the CPU: tables [R, blocks], query_start [R + 1],
    context_lens [R]. Returns [T, heads, D]. Slots outside of a row's context change nothing, whatever they hold.
    """
    return attend(
        q, k_cache, v_cache, views(query_start, context_lens, block_tables, k_cache.shape[1], window, q.device)
    )
