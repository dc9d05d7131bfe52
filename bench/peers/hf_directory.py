"""A checkpoint written out as Hugging Face has it, in float32: what peers read that do not read the file we read."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import save_file

from specialist.models.checkpoint import Checkpoint
from specialist.models.config import ModelConfig, Rope
from specialist.models.weight import dense

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_OUTER = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
_NORMS = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_ATTENTION = ("q", "k", "v", "o")


def write_hf_directory(checkpoint: Checkpoint, parent: Path) -> Path:
    """A directory named by the model's revision, there as a whole or not at all. One that is there is kept."""
    directory = parent / checkpoint.revision
    if directory.exists():
        return directory
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=parent, prefix=".draft-"))
    try:
        (draft / "config.json").write_text(json.dumps(hf_config(checkpoint.config), indent=1), encoding="utf-8")
        tensors = dict(_tensors(checkpoint))
        save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
        draft.replace(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """Names no end-of-text token: answers are as long as they are asked to be."""
    if any(window is not None for window in config.windows):
        raise ValueError("windows: a model with sliding windows cannot be written for peers")
    if config.architecture == "llama" and config.qkv_bias != config.output_bias:
        raise ValueError("qkv_bias, output_bias: transformers' Llama has both or none")
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.tied_head,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "rope_theta": config.rope.theta,
        "rope_scaling": _rope_scaling(config.rope),
        "sliding_window": None,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _rope_scaling(rope: Rope) -> dict[str, Any] | None:
    if rope.kind == "default":
        return None
    settings = asdict(rope)
    kind, theta, original = settings.pop("kind"), settings.pop("theta"), settings.pop("original_context")
    known = {name: value for name, value in settings.items() if value is not None}
    return {"rope_type": kind, "rope_theta": theta, "original_max_position_embeddings": original, **known}


def hf_name(name: str) -> str:
    """`layers.3.q` is `model.layers.3.self_attn.q_proj.weight` there."""
    if name in _OUTER:
        return _OUTER[name]
    layer, _, part = name.rpartition(".")
    return f"model.{layer}.{_within_layer(part)}"


def _within_layer(part: str) -> str:
    if part in _NORMS:
        return f"{_NORMS[part]}.weight"
    if part in ("q_norm", "k_norm"):
        return f"self_attn.{part}.weight"
    matrix, _, bias = part.partition("_")
    block = "self_attn" if matrix in _ATTENTION else "mlp"
    return f"{block}.{matrix}_proj.{bias or 'weight'}"


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in checkpoint.weights.items():
        yield hf_name(name), dense(weight).contiguous()
