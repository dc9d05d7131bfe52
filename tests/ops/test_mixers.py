"""The recurrent layers equal those of transformers, for tiny random mixers of every family."""

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specialist.ops.reference.recurrent import causal_conv, chunked_scan, gated_norm, selective_scan, step_sizes

TOKENS, HIDDEN, HEADS, HEAD_DIM, STATE = 11, 24, 6, 8, 5


@dataclass(frozen=True)
class Mixer:
    module: str
    prefix: str
    layer: str
    settings: dict[str, Any]
    groups: int = 1
    """Parts of a row that are normed separately."""
    gate_first: bool = True

    def build(self) -> Any:
        """Return the layer with random weights."""
        package = f"transformers.models.{self.module}"
        config_class = getattr(
            importlib.import_module(f"{package}.configuration_{self.module}"), f"{self.prefix}Config"
        )
        layer_class = getattr(importlib.import_module(f"{package}.modeling_{self.module}"), self.prefix + self.layer)
        common = {"hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # transformers warns about its own settings
            made = layer_class(config_class(**common, **self.settings), layer_idx=0).eval()
        torch.manual_seed(0)
        for name, parameter in made.named_parameters():
            if name == "A_log":
                parameter.uniform_(-2, 2)
            else:
                parameter.normal_()
        return made


def _names(form: str, **changes: Any) -> dict[str, Any]:
    """Return the sizes of a mixer by the names that a family has for them."""
    names = {
        "plain": "num_heads head_dim n_groups state_size chunk_size",
        "mamba": "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_chunk_size",
        "nemotron": "mamba_num_heads mamba_head_dim n_groups ssm_state_size chunk_size",
        "zamba": "n_mamba_heads mamba_headdim mamba_ngroups mamba_d_state chunk_size",
    }
    return dict(zip(names[form].split(), (HEADS, HEAD_DIM, 2, STATE, 4), strict=True)) | changes


_falcon = _names("mamba", mamba_d_ssm=HEADS * HEAD_DIM, mamba_rms_norm=True)
MIXERS = {
    "mamba2": Mixer("mamba2", "Mamba2", "Mixer", _names("plain")),
    "mamba2, limited steps": Mixer("mamba2", "Mamba2", "Mixer", _names("plain", time_step_limit=(0.2, 0.9))),
    "bamba": Mixer("bamba", "Bamba", "Mixer", _names("mamba")),
    "falcon_h1": Mixer("falcon_h1", "FalconH1", "Mixer", _falcon | {"mamba_norm_before_gate": False}, 2),
    "falcon_h1, gate last": Mixer("falcon_h1", "FalconH1", "Mixer", _falcon, 2, False),
    "granitemoehybrid": Mixer("granitemoehybrid", "GraniteMoeHybrid", "MambaLayer", _names("mamba")),
    "nemotron_h": Mixer("nemotron_h", "NemotronH", "Mamba2Mixer", _names("nemotron", time_step_min=0.3), 2),
    "zamba2": Mixer("zamba2", "Zamba2", "MambaMixer", _names("zamba", time_step_min=0.3, layer_types=["mamba"]), 2),
}


def assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_a_mixer(name: str) -> None:
    layer = MIXERS[name].build()
    if name.startswith("falcon_h1"):
        layer.mup_vector = torch.ones(1)  # which the whole model sets
    hidden = torch.randn(TOKENS, HIDDEN)
    inner, shared = HEADS * HEAD_DIM, 2 * STATE
    gate, mixed, raw = torch.split(layer.in_proj(hidden), [inner, inner + 2 * shared, HEADS], dim=-1)
    before = torch.zeros(layer.conv_kernel_size - 1, inner + 2 * shared)
    mixed, _ = causal_conv(mixed, before, layer.conv1d.weight.squeeze(1), layer.conv1d.bias)
    x, b, c = torch.split(functional.silu(mixed), [inner, shared, shared], dim=-1)
    inputs = (
        x.reshape(TOKENS, HEADS, HEAD_DIM),
        step_sizes(raw, layer.dt_bias, *layer.time_step_limit),
        b.reshape(TOKENS, 2, STATE),
        c.reshape(TOKENS, 2, STATE),
        -layer.A_log.exp(),
        layer.D,
        torch.zeros(HEADS, STATE, HEAD_DIM),
    )
    expected = layer(hidden.unsqueeze(0))[0]
    for y, _ in (selective_scan(*inputs), chunked_scan(*inputs, chunk=4)):
        norm = (layer.norm.weight, MIXERS[name].groups, layer.norm.variance_epsilon, MIXERS[name].gate_first)
        assert_near(layer.out_proj(gated_norm(y.flatten(1), gate, *norm)), expected)


@torch.no_grad()
def test_a_short_convolution() -> None:
    layer = Mixer("lfm2", "Lfm2", "ShortConv", {"conv_L_cache": 3, "conv_bias": True, "layer_types": ["conv"]}).build()
    hidden = torch.randn(TOKENS, HIDDEN)
    b, c, x = layer.in_proj(hidden).chunk(3, dim=-1)
    y, _ = causal_conv(b * x, torch.zeros(2, HIDDEN), layer.conv.weight.squeeze(1), layer.conv.bias)
    assert_near(layer.out_proj(c * y), layer(hidden.unsqueeze(0))[0])
