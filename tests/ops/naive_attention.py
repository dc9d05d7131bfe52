"""Attention by its definition, for one query and one head at a time, in float64."""

import torch
from torch import Tensor


def naive_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Return the attention of the last `len(q)` tokens of a context. `q` has the shape [Q, heads, D]; `k` and `v` have
    the shape [L, kv heads, D]."""
    num_queries, heads, head_dim = q.shape
    context, kv_heads, _ = k.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i in range(num_queries):
        position = context - num_queries + i
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            shared = head * kv_heads // heads
            keys, values = k[first : position + 1, shared].double(), v[first : position + 1, shared].double()
            weights = torch.softmax(keys @ q[i, head].double() / head_dim**0.5, dim=0)
            out[i, head] = weights @ values
    return out
