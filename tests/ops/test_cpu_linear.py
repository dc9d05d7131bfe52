"""The C++ matrix product: exact integers, 12-bit activations, independent rows."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specialist.models.weights import GROUP, Affine, Weight
from specialist.ops.cpu.linear import PackedLinear
from tests.native.fused import kernels
from tests.ops.quantize import quantize

Bits = Literal[4, 8]


def weight_of(rows: int, columns: int, bits: int, seed: int = 0) -> Weight:
    torch.manual_seed(seed)
    floats = torch.randn(rows, columns)
    return floats if bits == 32 else quantize(floats, 8 if bits == 8 else 4)


shapes = st.tuples(st.integers(1, 40), st.integers(1, 6).map(lambda groups: groups * GROUP), st.integers(1, 19))


@settings(max_examples=40)
@given(shapes, st.sampled_from([4, 8, 32]), st.integers(0, 9))
def test_the_product_is_that_of_the_stored_weights(shape: tuple[int, int, int], bits: int, seed: int) -> None:
    rows, columns, tokens = shape
    weight = weight_of(rows, columns, bits, seed)
    x = torch.randn(tokens, columns)
    floats = weight.dense() if isinstance(weight, Affine) else weight
    expected = x.double() @ floats.double().T
    # An activation is off by at most half a step of 1/2032 of its group's maximum, an output by the sum of these.
    tolerance = 2e-5 + (0 if bits == 32 else 2.0 / 2032 * float(floats.abs().max()) * columns**0.5)
    torch.testing.assert_close(PackedLinear(weight, kernels())(x).double(), expected, atol=tolerance, rtol=1e-5)


@settings(max_examples=40)
@given(shapes, st.sampled_from([4, 8, 32]), st.data())
def test_a_row_never_depends_on_its_neighbours(shape: tuple[int, int, int], bits: int, data: st.DataObject) -> None:
    rows, columns, tokens = shape
    linear = PackedLinear(weight_of(rows, columns, bits), kernels())
    x = torch.randn(tokens, columns)
    whole = linear(x)
    index = data.draw(st.integers(0, tokens - 1))
    others = torch.full_like(x, float("nan"))
    others[index] = x[index]
    assert torch.equal(linear(x[index : index + 1])[0], whole[index])
    assert torch.equal(linear(others)[index], whole[index])


@pytest.mark.parametrize("bits", [4, 8, 32])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_stay_non_finite(bits: int, bad: float) -> None:
    linear = PackedLinear(weight_of(16, 64, bits), kernels())
    x = torch.randn(3, 64)
    x[1, 40] = bad
    finite = linear(x).isfinite()
    assert finite[0].all() and finite[2].all() and not finite[1].any()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_integers_do_not_overflow(bits: Bits) -> None:
    most = 2**bits - 1
    q = torch.full((16, 64 if bits == 8 else 32), most if bits == 8 else most | most << 4, dtype=torch.uint8)
    ones = torch.ones(16, 2, dtype=torch.float16)
    weight = Affine(bits, q, ones, -ones)
    x = torch.full((1, 64), -3.0)
    np.testing.assert_allclose(PackedLinear(weight, kernels())(x), np.full((1, 16), -3.0 * 64 * (most - 1)), rtol=1e-6)


def test_zero_input_gives_zero_output() -> None:
    x = torch.zeros(2, 64)
    for bits in (4, 8, 32):
        assert not PackedLinear(weight_of(20, 64, bits), kernels())(x).any()


@pytest.mark.parametrize("size", [1e-30, 1e-34, 1e-38, 1e-45])
@pytest.mark.parametrize("bits", [4, 8])
def test_tiny_activations_count_as_zero(bits: Bits, size: float) -> None:
    out = PackedLinear(weight_of(16, 64, bits), kernels())(torch.full((1, 64), size))
    assert out.isfinite().all() and out.abs().max() < 1e-27
