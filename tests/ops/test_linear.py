"""Every matrix product has the precision that its kernel promises."""

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specialist.models.weights import Affine
from specialist.ops.cpu.linear import DynQuant, Int4Pack, add_halves, split_nibbles
from specialist.ops.reference.layers import Dense, MakeLinear, embed, stack_weights
from tests.native.device import DEVICE
from tests.ops.quantize import quantize

CPU = torch.device("cpu")
Bits = Literal[4, 8]


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


BFLOAT16_ROUNDOFF = 2**-8
"""Roundoff of one bfloat16 value. Inputs and outputs are each rounded once."""


def random_affine(bits: Bits, rows: int = 32, columns: int = 96, seed: int = 0) -> Affine:
    torch.manual_seed(seed)
    return quantize(torch.randn(rows, columns) * 0.1 + 0.02, bits)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("make", "most"),
    [(Dense, 1e-6), (DynQuant, 0.01), (Int4Pack, 2 * BFLOAT16_ROUNDOFF)],
    ids=["dense", "8-bit activations", "bfloat16"],
)
def test_small_integers_multiply_as_the_floats_they_stand_for(bits: Bits, make: MakeLinear, most: float) -> None:
    weight = random_affine(bits)
    for count in (1, 7):
        x = torch.randn(count, 96) + 0.3
        y = make(weight, CPU, torch.float32)(x)
        assert y.dtype == torch.float32 and y.shape == (count, 32)
        assert relative_error(y, x.double() @ weight.dense().double().T) < most


@settings(max_examples=30)
@given(bits=st.sampled_from((4, 8)), seed=st.integers(0, 999))
def test_nibbles_add_up_to_the_weight(bits: Bits, seed: int) -> None:
    weight = random_affine(bits, 5, 64, seed)
    q, scale, offset = split_nibbles(weight)
    assert int(q.max()) < 16
    around_8 = (q.float() - 8) * scale.repeat_interleave(32, 1)
    total = add_halves(around_8.T, 5).T + offset.repeat_interleave(32, 1)
    torch.testing.assert_close(total, weight.dense(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [Dense])
def test_floats_multiply_in_the_type_asked_for(make: MakeLinear, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(24, 40), torch.randn(3, 40)
    y = make(weight.half(), DEVICE, dtype)(x.to(DEVICE, dtype))
    assert y.dtype == dtype and y.device.type == DEVICE.type
    assert relative_error(y.cpu(), x @ weight.T) < (1e-3 if dtype == torch.float32 else 1e-2)


def test_floats_that_can_be_used_where_they_lie_are_not_copied() -> None:
    weight = torch.randn(8, 8)
    assert Dense(weight, CPU, torch.float32).weight.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("weight", [torch.randn(9, 64), random_affine(4, 9, 64), random_affine(8, 9, 64)])
def test_embedding_takes_rows(weight: Tensor | Affine) -> None:
    tokens = torch.tensor([8, 0, 3, 3], dtype=torch.int32)
    whole = weight if isinstance(weight, Tensor) else weight.dense()
    assert torch.equal(embed(weight, tokens, torch.float32), whole[tokens.long()])


def test_a_stack_multiplies_as_its_parts() -> None:
    x = torch.randn(2, 96)
    for parts in (
        [random_affine(4, 3), random_affine(4, 5)],
        [random_affine(8, 2), random_affine(8, 7)],
        [torch.randn(3, 96), torch.randn(4, 96)],
    ):
        whole = Dense(stack_weights(parts), CPU, torch.float32)(x)
        assert torch.allclose(whole, torch.cat([Dense(part, CPU, torch.float32)(x) for part in parts], -1), atol=1e-5)
    with pytest.raises(ValueError, match=r"4 bits.*8 bits"):
        stack_weights([random_affine(4), random_affine(8)])


@pytest.mark.parametrize(
    ("make", "weight", "device", "dtype", "why"),
    [
        (DynQuant, torch.randn(32, 64), "cpu", torch.float32, "4-bit and 8-bit"),
        (DynQuant, random_affine(4), "meta", torch.float32, "on the CPU"),
        (DynQuant, random_affine(4), "cpu", torch.bfloat16, "in float32"),
        (DynQuant, random_affine(4, 32, 32), "cpu", torch.float32, "more than one group"),
        (Int4Pack, torch.randn(32, 64), "cpu", torch.float32, "4-bit and 8-bit"),
        (Int4Pack, random_affine(4), "meta", torch.float32, "on the CPU"),
        (Int4Pack, random_affine(4, 24), "cpu", torch.float32, "multiple of 16 rows, got 24"),
    ],
)
def test_a_kernel_refuses_unsupported_weights(
    make: MakeLinear, weight: Tensor | Affine, device: str, dtype: torch.dtype, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        make(weight, torch.device(device), dtype)
