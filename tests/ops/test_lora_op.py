"""A low-rank addition equals the product with the merged matrix."""

import pytest
import torch

from specialist.ops.reference.layers import add_low_rank
from tests.native.device import DEVICE


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_adds_to_some_columns_what_the_merged_matrix_would(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    x, a, b = (torch.randn(*shape, device=DEVICE).to(dtype) for shape in ((5, 24), (3, 24), (8, 3)))
    y = torch.randn(5, 20, device=DEVICE).to(dtype)
    before = y.clone()
    add_low_rank(y[:, 4:12], x, a, b, 0.25)
    added = x.double() @ (0.25 * b.double() @ a.double()).T
    torch.testing.assert_close((y - before)[:, 4:12].double(), added, atol=tolerance, rtol=tolerance)
    assert torch.equal(y[:, :4], before[:, :4]) and torch.equal(y[:, 12:], before[:, 12:])
