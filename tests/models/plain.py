"""A tiny random Hugging Face directory and adapters for it, written without transformers."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specialist.models.checkpoint import ModelConfig, expected_shapes
from specialist.models.fields import ModelFields
from specialist.models.huggingface import read_huggingface_config
from specialist.models.huggingface_files import NAMES
from tests.adapters import peft_files
from tests.models.tiny import CHAT_TEMPLATE, TINY, tiny_tokenizer

_TENSORS = {ours: theirs for theirs, ours in NAMES.top.items()}
_LAYERS = {ours: theirs for theirs, ours in NAMES.layer.items()}


def write_model(directory: Path, family: str = "llama", *, seed: int = 0, **overrides: Any) -> ModelConfig:
    """Write a random model with tokenizer and chat template. Return its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"model_type": family, "tie_word_embeddings": True, **TINY, **overrides}
    (directory / "config.json").write_text(json.dumps(fields))
    config = read_huggingface_config(ModelFields("config.json", fields))
    torch.manual_seed(seed)
    tensors = {_tensor_name(name): torch.randn(shape) * 0.2 for name, shape in expected_shapes(config)}
    save_file(tensors, directory / "model.safetensors")
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    named = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    return config


def write_adapter(directory: Path, config: ModelConfig, seed: int = 0, **settings: Any) -> Path:
    """Write a random adapter whose effect on an answer is visible. Return its directory."""
    return peft_files.write(directory, peft_files.random_tensors(seed=seed, model=config), **settings)


def _tensor_name(name: str) -> str:
    if name in _TENSORS:
        return _TENSORS[name]
    layers, layer, part = name.split(".")
    kind = "bias" if part.endswith("_bias") else "weight"
    return f"model.{layers}.{layer}.{_LAYERS[part.removesuffix('_bias')]}.{kind}"
