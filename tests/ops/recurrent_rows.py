"""Random rows for the recurrent layers, and calls of the C++ kernels with them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from specialist.ops.cpu.library import ConvStruct, ScanStruct
from specialist.ops.reference.recurrent import causal_conv, selective_scan, step_sizes

MARGIN = 3
"""Columns of NaN beside every row that a kernel reads."""


def _in_wide_rows(values: Tensor) -> Tensor:
    """Return the same values as a view of rows with a margin."""
    return functional.pad(values, (0, MARGIN), value=math.nan)[:, : values.shape[1]]


def _ranges(tokens: int, cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    return pairwise(sorted({0, tokens, *cuts}))


ScanInputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""The arguments of `selective_scan`."""


@dataclass
class ConvRow:
    channels: int
    width: int
    tokens: int
    silu: bool
    biased: bool
    seed: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.x = _in_wide_rows(2 * torch.randn(self.tokens, self.channels))
        self.weight = torch.randn(self.channels, self.width)
        self.bias = torch.randn(self.channels) if self.biased else None
        self.state = torch.randn(self.width - 1, self.channels)

    def expected(self) -> tuple[Tensor, Tensor]:
        bias = None if self.bias is None else self.bias.double()
        y, state = causal_conv(self.x.double(), self.state.double(), self.weight.double(), bias)
        return functional.silu(y) if self.silu else y, state

    def run(
        self,
        library: Any,
        token_cuts: Sequence[int] = (),
        channel_cuts: Sequence[int] = (),
        *,
        in_place: bool = False,
        wants_state: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return y and the state after the last token, computed in one call for each range of tokens and channels. In
        place, y overwrites x. Without a state, there is one range of tokens, and the state returned is NaN."""
        taps = self.weight.T.contiguous()
        bias = None if self.bias is None else self.bias.data_ptr()
        conv = ConvStruct(self.channels, self.width, taps.data_ptr(), bias, self.silu)
        x = _in_wide_rows(self.x)
        y = x if in_place else _in_wide_rows(torch.full_like(x, math.nan))
        state = self.state
        for begin, end in _ranges(self.tokens, token_cuts):
            after = torch.full_like(state, math.nan)
            for first, last in _ranges(self.channels, channel_cuts):
                given = (x[begin:].data_ptr(), x.stride(0), end - begin, state.data_ptr())
                to = after.data_ptr() if wants_state else None
                library.octet_convolve(conv, *given, to, y[begin:].data_ptr(), y.stride(0), first, last)
            state = after
        return y, state


@dataclass
class ScanRow:
    heads: int
    head_dim: int
    state_size: int
    groups: int
    tokens: int
    low: float = 0.0
    high: float = math.inf
    seed: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        inner, shared = self.heads * self.head_dim, self.groups * self.state_size
        self.row = _in_wide_rows(torch.randn(self.tokens, inner + 2 * shared))  # columns of x, b and c
        self.raw = _in_wide_rows(3 * torch.randn(self.tokens, self.heads))
        self.bias = 3 * torch.randn(self.heads)
        self.a = -(16 ** torch.empty(self.heads).uniform_(-2, 1))
        self.d = torch.randn(self.heads)
        self.state = torch.randn(self.heads, self.state_size, self.head_dim)

    def inputs(self, dtype: torch.dtype = torch.float64) -> ScanInputs:
        shared = self.groups * self.state_size
        x, b, c = torch.split(self.row.to(dtype), [self.heads * self.head_dim, shared, shared], dim=1)
        b, c = (each.reshape(self.tokens, self.groups, self.state_size) for each in (b, c))
        dt = step_sizes(self.raw.to(dtype), self.bias.to(dtype), self.low, self.high)
        a, d, state = (each.to(dtype) for each in (self.a, self.d, self.state))
        return x.reshape(self.tokens, self.heads, self.head_dim), dt, b, c, a, d, state

    def expected(self) -> tuple[Tensor, Tensor]:
        return selective_scan(*self.inputs())

    def run(
        self,
        library: Any,
        cuts: Sequence[int] = (),
        *,
        heads: Sequence[int] | None = None,
        in_place: bool = False,
        wants_y: bool = True,
        wants_state: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return y and the state after the last token, with NaN in what is not computed. A call computes one head of
        one range of tokens. Without a state, there is one range."""
        scan = ScanStruct(
            self.heads, self.head_dim, self.state_size, self.groups,
            self.a.data_ptr(), self.d.data_ptr(), self.bias.data_ptr(), self.low, self.high,
        )  # fmt: skip
        y = _in_wide_rows(torch.full((self.tokens, self.heads * self.head_dim), math.nan))
        b = self.heads * self.head_dim
        c = b + self.groups * self.state_size
        state = self.state
        for begin, end in _ranges(self.tokens, cuts):
            after = state.clone() if in_place else torch.full_like(state, math.nan)
            before = after if in_place else state
            for head in range(self.heads) if heads is None else heads:
                row, raw = self.row[begin:], self.raw[begin:]
                columns = (row.data_ptr(), row.stride(0), row[:, b:].data_ptr(), row[:, c:].data_ptr())
                library.octet_scan(
                    scan, head, end - begin, *columns, raw.data_ptr(), raw.stride(0), before[head].data_ptr(),
                    after[head].data_ptr() if wants_state else None,
                    y[begin:].data_ptr() if wants_y else None, y.stride(0),
                )  # fmt: skip
            state = after
        return y.reshape(self.tokens, self.heads, self.head_dim), state


def run_gated_norm(
    library: Any, y: Tensor, gate: Tensor, weight: Tensor, groups: int, eps: float, gate_first: bool
) -> Tensor:
    """Call the kernel for every row."""
    out = torch.full_like(y, math.nan)
    for t in range(len(y)):
        pointers = (each.data_ptr() for each in (y[t], gate[t], weight))
        library.octet_gated_norm(*pointers, y.shape[1], groups, eps, gate_first, out[t].data_ptr())
    return out


def bits_of(floats: Tensor) -> Tensor:
    return floats.contiguous().view(torch.int32)


def assert_same_bits(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    """Compare two results of `run`."""
    assert torch.equal(bits_of(one[0]), bits_of(other[0]))
    assert torch.equal(bits_of(one[1]), bits_of(other[1]))
