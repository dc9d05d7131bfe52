"""A model written for peers equals the model that transformers would write."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

from bench.peers.model_files import hf_config, write_hf_directory
from specialist.models.checkpoint import Architecture, Checkpoint, ModelConfig, Rope, Vocabulary, expected_shapes
from specialist.models.weights import Affine, Weight, dense

LLAMA3 = Rope(500_000.0, "llama3", 8.0, 128, 1.0, 4.0)
FEATURES: Mapping[Architecture, dict[str, object]] = {
    "llama": {"tied_head": True, "rope": LLAMA3},
    "mistral": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "tied_head": True},
}


def tiny(architecture: Architecture) -> Checkpoint:
    settings = {"tied_head": False, "rope": Rope(), **FEATURES[architecture]}
    config = ModelConfig(architecture, 96, 64, 96, 2, 4, 2, 16, 1e-5, context=256, **settings)  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(1)
    weights: dict[str, Weight] = {name: torch.randn(shape, generator=random) for name, shape in expected_shapes(config)}
    q = torch.randint(0, 256, (96, 32), dtype=torch.uint8, generator=random)
    scale, minimum = (torch.rand(96, 2, generator=random).half() for _ in range(2))
    weights["layers.1.gate"] = Affine(4, q, scale, minimum)
    vocabulary = Vocabulary(Tokenizer(BPE()), {}, None, frozenset(), None)
    return Checkpoint(config, vocabulary, f"{architecture:0<64}", weights)


@pytest.mark.parametrize("architecture", FEATURES)
def test_transformers_loads_every_weight(architecture: Architecture, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    checkpoint = tiny(architecture)
    directory = write_hf_directory(checkpoint, tmp_path)
    loaded: Any = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    model, report = loaded
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    layer = model.model.layers[1]
    assert torch.equal(layer.mlp.gate_proj.weight, dense(checkpoint.weights["layers.1.gate"]))
    assert torch.equal(layer.self_attn.o_proj.weight, dense(checkpoint.weights["layers.1.o"]))
    assert torch.equal(layer.post_attention_layernorm.weight, dense(checkpoint.weights["layers.1.mlp_norm"]))
    assert model.generation_config.eos_token_id is None
    assert model.config.rope_parameters["rope_type"] == checkpoint.config.rope.kind
    assert model.config.rope_parameters["rope_theta"] == checkpoint.config.rope.theta


def test_directory_is_written_once_and_never_partially(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tiny("llama")
    with monkeypatch.context() as patch:
        patch.setattr("bench.peers.model_files.save_file", _full_disk)
        with pytest.raises(OSError, match="full"):
            write_hf_directory(checkpoint, tmp_path)
    assert list(tmp_path.iterdir()) == []
    directory = write_hf_directory(checkpoint, tmp_path)
    before = (directory / "model.safetensors").stat().st_mtime_ns
    assert write_hf_directory(checkpoint, tmp_path) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == before


def test_config_that_transformers_cannot_express_is_refused() -> None:
    config = tiny("llama").config
    with pytest.raises(ValueError, match="windows"):
        hf_config(replace(config, windows=(8, None)))
    with pytest.raises(ValueError, match="qkv_bias"):
        hf_config(replace(config, qkv_bias=True))


def _full_disk(*arguments: object, **options: object) -> None:
    raise OSError("the disk is full")
