"""Models with recurrent layers are opened from Hugging Face directories, or refused with the field that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specialist.models.checkpoint import ModelConfig, expected_shapes
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.huggingface import read_huggingface_config
from specialist.models.open import inspect_model, open_checkpoint
from tests.models.tiny_hybrids import HYBRIDS, save_hybrid


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def read(**fields: Any) -> ModelConfig:
    return read_huggingface_config(ModelFields("m/config.json", fields))


@pytest.mark.parametrize("family", HYBRIDS)
def test_every_weight_is_found_and_has_its_shape(tmp_path: Path, family: str) -> None:
    save_hybrid(tmp_path, family)
    assert inspect_model(tmp_path).problems == []
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.architecture == family and checkpoint.config.is_recurrent
    for name, shape in expected_shapes(checkpoint.config):
        assert tuple(checkpoint.weights[name].shape) == shape, name


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_missing_or_foreign_tensor_is_named(tmp_path: Path, family: str) -> None:
    save_hybrid(tmp_path, family)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    lost = next(name for name in tensors if name.endswith(("in_proj.weight", "conv.weight")))
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, file, {"format": "pt"})
    assert "is missing" in str(inspect_model(tmp_path).problems)
    save_file({**tensors, "model.layers.0.surplus.weight": torch.zeros(2)}, file, {"format": "pt"})
    assert "model.layers.0.surplus.weight" in str(inspect_model(tmp_path).problems)


def test_names_of_older_files_are_read() -> None:
    pattern = read(
        model_type="nemotron_h", vocab_size=9, hidden_size=64, num_attention_heads=4, hybrid_override_pattern="M-*-M"
    )
    assert [parts[0] for parts in pattern.parts] == ["ssm", "mlp", "attention", "mlp", "ssm"]
    granite = read(
        model_type="granitemoehybrid",
        vocab_size=9,
        hidden_size=64,
        num_attention_heads=4,
        num_local_experts=0,
        mamba_n_heads=4,
        layer_types=["mamba", "attention"],
    )
    assert granite.parts == (("ssm", "mlp"), ("attention", "mlp")) and granite.rotary_dim == 0
    lfm2 = read(
        model_type="lfm2",
        vocab_size=9,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        block_ff_dim=96,
        full_attn_idxs=[1],
        block_multiple_of=8,
    )
    assert lfm2.parts == (("conv", "mlp"), ("attention", "mlp"))
    assert (lfm2.intermediate_size, lfm2.tied_head, lfm2.rope.theta) == (64, True, 1_000_000.0)


COMMON: dict[str, Any] = {"vocab_size": 9, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"model_type": "granitemoehybrid", "num_local_experts": 8}, "mixtures of experts"),
    "experts in a pattern": ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME*"}, "'E'"),
    "an unknown layer": ({"model_type": "zamba2", "layers_block_type": ["mamba", "moe"]}, "'moe'"),
    "no layers": ({"model_type": "zamba2", "layers_block_type": []}, "1 to"),
    "another activation": ({"model_type": "bamba", "hidden_act": "gelu"}, "must be silu"),
    "an index beyond": ({"model_type": "bamba", "attn_layer_indices": [2]}, "attn_layer_indices"),
    "steps without order": ({"model_type": "mamba2", "time_step_limit": [2.0, 1.0]}, "time_step_limit"),
    "steps of another type": ({"model_type": "mamba2", "time_step_limit": [False, True]}, "time_step_limit"),
    "a step beyond floats": ({"model_type": "mamba2", "time_step_limit": [0, 10**400]}, "time_step_limit"),
    "too wide": ({"model_type": "mamba2", "conv_kernel": 99}, "conv_kernel"),
    "groups": ({"model_type": "mamba2", "num_heads": 4, "n_groups": 3}, "3 groups"),
    "another rope": (
        {"model_type": "zamba2", "layers_block_type": ["mamba"], "use_long_context": True},
        "use_long_context",
    ),
    "another class": ({"model_type": "lfm2", "architectures": ["Lfm2Model"]}, "Lfm2ForCausalLM"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(case: str) -> None:
    fields, expected = REFUSED[case]
    with pytest.raises(ModelRefused, match=expected):
        read(**{**COMMON, **fields})


@pytest.mark.parametrize(
    "lost", ["linear_q", "_list.0.1", "adapter", "gate_up_proj_adapter_list.2.", "layers.2.shared"]
)
def test_a_shared_block_without_some_of_its_terms_is_refused(tmp_path: Path, lost: str) -> None:
    save_hybrid(tmp_path, "zamba2")
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if lost not in name}
    save_file(tensors, file, {"format": "pt"})
    assert "is missing" in str(inspect_model(tmp_path).problems)


def test_a_surplus_low_rank_term_is_refused(tmp_path: Path) -> None:
    save_hybrid(tmp_path, "zamba2")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "linear_q_adapter_list.0.1" in name)
    save_file({**tensors, name.replace("_list.0.", "_list.7."): tensors[name].clone()}, file, {"format": "pt"})
    assert "unexpected tensors" in str(inspect_model(tmp_path).problems)


def test_sizes_of_parts_that_no_layer_has_are_ignored() -> None:
    config = read(**{**COMMON, "model_type": "bamba", "attn_layer_indices": [], "head_dim": 16_000_000})
    assert (config.head_dim, config.q_size, config.attention_layers) == (0, 0, ())
    dense = {"model_type": "granitemoehybrid", "num_local_experts": 0, "layer_types": ["attention"]}
    assert not read(**{**COMMON, **dense}).is_recurrent


def test_a_low_rank_term_of_another_shape_is_refused(tmp_path: Path) -> None:
    save_hybrid(tmp_path, "zamba2")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "linear_q_adapter_list.0.1" in name)
    save_file({**tensors, name: tensors[name][:-1].clone()}, file, {"format": "pt"})
    assert "low-rank term" in str(inspect_model(tmp_path).problems)


def test_a_shared_block_where_the_config_has_none_is_refused(tmp_path: Path) -> None:
    save_hybrid(tmp_path, "zamba2")
    change_config(tmp_path, layers_block_type=["mamba", "mamba", "hybrid", "hybrid"])
    assert "layer 1 has a shared block" in str(inspect_model(tmp_path).problems)
