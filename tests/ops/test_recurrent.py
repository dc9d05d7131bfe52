"""Recurrent layers: the references equal their definitions, and the C++ kernels equal the references."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from specialist.ops.reference.recurrent import causal_conv, chunked_scan, gated_norm, selective_scan
from tests.native.device import DEVICE
from tests.native.fused import kernels
from tests.ops.recurrent_rows import ConvRow, ScanRow, assert_same_bits, bits_of, run_gated_norm

conv_rows = st.builds(
    ConvRow,
    channels=st.integers(1, 70),
    width=st.integers(2, 9),
    tokens=st.integers(1, 40),
    silu=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
_groups = st.integers(1, 3)
scan_rows = st.builds(
    lambda groups, shared, limits, **sizes: ScanRow(
        heads=groups * shared, groups=groups, low=limits[0], high=limits[1], **sizes
    ),
    groups=_groups,
    shared=st.integers(1, 3),
    limits=st.sampled_from([(0.0, math.inf), (1e-3, math.inf), (0.5, 2.0)]),
    head_dim=st.one_of(st.integers(1, 40), st.sampled_from([64, 80, 100])),
    state_size=st.integers(1, 19),
    tokens=st.one_of(st.integers(1, 9), st.integers(30, 70)),
    seed=st.integers(0, 99),
)
cuts = st.lists(st.integers(1, 69), max_size=4)


def _usable(cuts: list[int], tokens: int) -> list[int]:
    return [cut for cut in cuts if cut < tokens]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """The sums of a row cancel, so its values are compared with its largest."""
    size = max(1e-30, float(expected.abs().max()))
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance * size, rtol=tolerance)


# References


@given(conv_rows)
def test_the_convolution_is_that_of_pytorch(row: ConvRow) -> None:
    x, state, weight = (each.double() for each in (row.x, row.state, row.weight))
    bias = None if row.bias is None else row.bias.double()
    inputs = torch.cat((state, x))
    expected = functional.conv1d(inputs.T.unsqueeze(0), weight.unsqueeze(1), bias, groups=row.channels)[0].T
    y, after = causal_conv(x, state, weight, bias)
    torch.testing.assert_close(y, expected)
    assert torch.equal(after, inputs[-(row.width - 1) :])


def _scan_by_scalars(row: ScanRow) -> tuple[Tensor, Tensor]:
    """One number at a time, from the definition."""
    x, _, b, c, a, d, state = (each.tolist() for each in row.inputs())
    y = torch.zeros(row.tokens, row.heads, row.head_dim, dtype=torch.float64)
    for t in range(row.tokens):
        for h in range(row.heads):
            group = h * row.groups // row.heads
            raw = float(row.raw[t, h].double() + row.bias[h].double())
            dt = min(max(math.log1p(math.exp(-abs(raw))) + max(raw, 0.0), row.low), row.high)
            for p in range(row.head_dim):
                y[t, h, p] = d[h] * x[t][h][p]
                for n in range(row.state_size):
                    state[h][n][p] = math.exp(dt * a[h]) * state[h][n][p] + b[t][group][n] * dt * x[t][h][p]
                    y[t, h, p] += c[t][group][n] * state[h][n][p]
    return y, torch.tensor(state, dtype=torch.float64)


@settings(max_examples=10)
@given(st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 12))
def test_the_scan_is_its_definition(groups: int, shared: int, head_dim: int, state_size: int, tokens: int) -> None:
    row = ScanRow(groups * shared, head_dim, state_size, groups, tokens, low=0.01, high=4.0)
    for actual, expected in zip(row.expected(), _scan_by_scalars(row), strict=True):
        assert_near(actual, expected, 1e-12)


@given(scan_rows, st.integers(1, 80))
def test_the_chunked_scan_is_the_scan(row: ScanRow, chunk: int) -> None:
    x, dt, b, c, a, d, state = (each.to(DEVICE) for each in row.inputs(torch.float32))
    for actual, expected in zip(chunked_scan(x, dt, b, c, a, d, state, chunk), row.expected(), strict=True):
        assert_near(actual.cpu(), expected)


def test_chunks_are_exact_where_decay_is_strong() -> None:
    """The sum of logarithms is 16,384 there: its float32 rounding alone would change later decays by 1e-3."""
    x, dt, b, c, a, d, state = ScanRow(4, 16, 16, 1, 256).inputs(torch.float32)
    dt = torch.where(torch.arange(256).unsqueeze(1) < 128, 8.0, 1e-3 * dt)
    a = torch.full_like(a, -16.0)
    expected, _ = selective_scan(*(each.double() for each in (x, dt, b, c, a, d, state)))
    assert_near(chunked_scan(x, dt, b, c, a, d, state, chunk=256)[0], expected)


@given(scan_rows, cuts)
def test_references_go_on_from_the_state_that_they_returned(row: ScanRow, cuts: list[int]) -> None:
    x, dt, b, c, a, d, state = row.inputs()
    whole, last = row.expected()
    edges = sorted({0, row.tokens, *_usable(cuts, row.tokens)})
    for scan in (selective_scan, chunked_scan):
        after, outputs = state, []
        for begin, end in pairwise(edges):
            y, after = scan(x[begin:end], dt[begin:end], b[begin:end], c[begin:end], a, d, after)
            outputs.append(y)
        assert_near(torch.cat(outputs), whole)
        assert_near(after, last)


# C++


@given(conv_rows)
def test_the_kernel_of_the_convolution_is_the_reference(row: ConvRow) -> None:
    for actual, expected in zip(row.run(kernels()), row.expected(), strict=True):
        assert_near(actual, expected)


@given(conv_rows, cuts, cuts, st.booleans())
def test_a_convolution_gives_the_same_bits_in_any_calls(
    row: ConvRow, tokens: list[int], channels: list[int], in_place: bool
) -> None:
    whole = row.run(kernels())
    some = row.run(kernels(), _usable(tokens, row.tokens), _usable(channels, row.channels), in_place=in_place)
    assert_same_bits(some, whole)
    assert_same_bits(row.run(kernels(), range(row.tokens)), whole)
    y, _ = row.run(kernels(), in_place=in_place, wants_state=False)
    assert torch.equal(bits_of(y), bits_of(whole[0]))


@given(scan_rows)
def test_the_kernel_of_the_scan_is_the_reference(row: ScanRow) -> None:
    for actual, expected in zip(row.run(kernels()), row.expected(), strict=True):
        assert_near(actual, expected)


@given(scan_rows, cuts, st.booleans())
def test_a_scan_gives_the_same_bits_in_any_calls(row: ScanRow, cuts: list[int], in_place: bool) -> None:
    whole = row.run(kernels())
    assert_same_bits(row.run(kernels(), _usable(cuts, row.tokens), in_place=in_place), whole)
    assert_same_bits(row.run(kernels(), range(row.tokens)), whole)
    y, _ = row.run(kernels(), wants_state=False)
    assert torch.equal(bits_of(y), bits_of(whole[0]))
    _, after = row.run(kernels(), _usable(cuts, row.tokens), wants_y=False)
    assert torch.equal(bits_of(after), bits_of(whole[1]))


@given(scan_rows, st.data())
def test_a_head_depends_on_its_own_columns_only(row: ScanRow, data: st.DataObject) -> None:
    head = data.draw(st.integers(0, row.heads - 1))
    whole_y, whole_state = row.run(kernels())
    group = head // (row.heads // row.groups)
    inner, shared = row.heads * row.head_dim, row.groups * row.state_size
    mine = torch.zeros(row.row.shape[1], dtype=torch.bool)
    mine[head * row.head_dim : (head + 1) * row.head_dim] = True
    for first in (inner, inner + shared):
        mine[first + group * row.state_size : first + (group + 1) * row.state_size] = True
    row.row[:, ~mine] = math.nan
    others = torch.arange(row.heads) != head
    for tensor in (row.raw.T, row.bias, row.a, row.d, row.state):
        tensor[others] = math.nan
    y, state = row.run(kernels(), heads=[head])
    assert torch.equal(bits_of(y[:, head]), bits_of(whole_y[:, head]))
    assert torch.equal(bits_of(state[head]), bits_of(whole_state[head]))
    assert y[:, others].isnan().all()
    assert state[others].isnan().all()


@pytest.mark.parametrize("raw", [-200.0, -87.5, -40.0, -1e-3, 0.0, 1e-3, 15.0, 40.0, 1e6])
def test_step_sizes_are_exact_at_every_magnitude(raw: float) -> None:
    """y = dt for a state of one number that starts at 0, with a = -0 and b = c = x = 1."""
    row = ScanRow(1, 1, 1, 1, 1)
    row.row.fill_(1.0)
    row.raw.fill_(raw)
    for tensor in (row.bias, row.a, row.d, row.state):
        tensor.zero_()
    y, _ = row.run(kernels())
    expected = functional.softplus(torch.tensor(raw, dtype=torch.float64), threshold=1e3)
    torch.testing.assert_close(y.double().flatten()[0], expected, rtol=5e-7, atol=1e-37)


def test_a_step_size_that_is_not_a_number_is_not_clamped() -> None:
    row = ScanRow(2, 16, 4, 1, 3, low=0.5, high=2.0)
    row.raw[1, 0] = math.nan
    y, state = row.run(kernels())
    assert y[0].isfinite().all() and y[1:, 0].isnan().all() and state[0].isnan().all()
    assert y[:, 1].isfinite().all() and state[1].isfinite().all()


@given(st.integers(1, 4), st.integers(1, 70), st.integers(1, 5), st.booleans(), st.integers(-3, 3), st.integers(0, 99))
def test_the_kernel_of_the_gated_norm_is_the_reference(
    groups: int, size: int, tokens: int, gate_first: bool, exponent: int, seed: int
) -> None:
    torch.manual_seed(seed)
    y = torch.randn(tokens, groups * size) * 10.0**exponent
    gate, weight = 3 * torch.randn(tokens, groups * size), torch.rand(groups * size) + 0.5
    expected = gated_norm(y.double(), gate.double(), weight.double(), groups, 1e-5, gate_first)
    assert_near(run_gated_norm(kernels(), y, gate, weight, groups, 1e-5, gate_first), expected)
