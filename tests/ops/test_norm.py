"""Norms equal their definition."""

import pytest
import torch

from specialist.ops.reference.layers import add_rms_norm, rms_norm
from tests.native.device import DEVICE


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_rms_norm_is_its_definition(dtype: torch.dtype, tolerance: float, size: float) -> None:
    torch.manual_seed(0)
    x = (size * torch.randn(4, 3, 40, device=DEVICE)).to(dtype)
    weight = torch.rand(40, device=DEVICE)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    normed = rms_norm(x, weight, 1e-5)
    assert normed.dtype == dtype
    torch.testing.assert_close(normed.double(), expected, atol=tolerance, rtol=tolerance)


def test_a_bfloat16_row_too_large_to_square_is_normed_all_the_same() -> None:
    x = torch.full((1, 8), 1e18, dtype=torch.bfloat16, device=DEVICE)
    torch.testing.assert_close(rms_norm(x, torch.ones(8, device=DEVICE), 1e-5), torch.ones_like(x))


def test_adding_first_gives_the_norm_of_the_sum_and_the_sum() -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(2, 4, 16, device=DEVICE).unbind()
    weight = torch.rand(16, device=DEVICE)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, rms_norm(x + residual, weight, 1e-5))
