"""Rope frequencies equal those of transformers, and rotation preserves norms."""

from typing import TYPE_CHECKING, Any

import pytest
import torch

from specialist.models.checkpoint import ModelConfig
from specialist.ops.reference.layers import cos_sin, inverse_frequencies, rotate
from tests.later import Later
from tests.native.device import DEVICE
from tests.native.transformers_models import SMALL, model_config

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
VARIANTS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 96,
    },
    "yarn": YARN,
    "yarn, ramp not rounded": {**YARN, "truncate": False},
    "yarn, steep": {**YARN, "beta_fast": 4.0, "beta_slow": 3.9},
    "yarn, own attention factor": {**YARN, "attention_factor": 0.7},
    "yarn, both scales": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5},
    "yarn, one scale counts for nothing": {**YARN, "mscale": 0.8},
    "yarn, shrinking": {**YARN, "factor": 0.9},
}


def with_rope(rope: dict[str, Any], head_dim: int) -> tuple["transformers.LlamaConfig", ModelConfig]:
    parameters = {"rope_theta": 10_000.0, **rope}
    config = transformers.LlamaConfig(**{**SMALL, "head_dim": head_dim, "rope_parameters": parameters})
    return config, model_config(config)


@pytest.mark.filterwarnings("ignore")  # transformers warns about its own settings
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_frequencies_equal_those_of_transformers(name: str, head_dim: int) -> None:
    config, ours = with_rope(VARIANTS[name], head_dim)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    expected, factor = ROPE_INIT_FUNCTIONS[VARIANTS[name]["rope_type"]](config, None)
    frequencies, our_factor = inverse_frequencies(ours)
    torch.testing.assert_close(frequencies, expected, atol=0, rtol=1e-6)
    assert our_factor == pytest.approx(factor, rel=1e-12)


def test_plain_frequencies_fall_from_1_to_nearly_1_over_theta() -> None:
    frequencies, factor = inverse_frequencies(with_rope({"rope_type": "default"}, 64)[1])
    assert factor == 1.0
    torch.testing.assert_close(frequencies.log(), -torch.arange(32) / 32 * torch.tensor(10_000.0).log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turning_is_complex_multiplication(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, 8, device=DEVICE).to(dtype)
    positions = torch.tensor([0, 1, 2, 77, 130_000], dtype=torch.int32, device=DEVICE)
    frequencies = torch.tensor([1.0, 0.3, 0.01, 0.0001], device=DEVICE)
    turned = rotate(x, *cos_sin(positions, frequencies, 1.5))
    assert turned.dtype == dtype
    angles = (positions.float().unsqueeze(-1) * frequencies).double()
    expected = torch.complex(*x.double().chunk(2, -1)) * torch.polar(torch.full_like(angles, 1.5), angles).unsqueeze(1)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        turned.double(), torch.cat((expected.real, expected.imag), -1), atol=tolerance, rtol=tolerance
    )
