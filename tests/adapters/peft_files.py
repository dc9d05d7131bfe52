"""PEFT directories written by hand, so that a test can make any part of them invalid."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specialist.adapters.adapter import matrix_shapes
from specialist.models.checkpoint import ModelConfig, Rope

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=24,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    norm_eps=1e-5,
    rope=Rope(),
    context=128,
    tied_head=True,
)
SETTINGS: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "bias": "none",
    "target_modules": ["q_proj", "down_proj"],
    "init_lora_weights": True,
    "lora_dropout": 0.1,
    "peft_version": "0.19.0",
}


def tensor_name(matrix: str, half: str) -> str:
    """Return PEFT's tensor name for half `A` or `B` of a matrix such as `layers.0.q`."""
    layers, layer, name = matrix.split(".")
    block = "self_attn" if name in ("q", "k", "v", "o") else "mlp"
    return f"base_model.model.model.{layers}.{layer}.{block}.{name}_proj.lora_{half}.weight"


def random_tensors(
    targets: tuple[str, ...] = ("q", "down"), rank: int = 4, seed: int = 0, model: ModelConfig = MODEL
) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    tensors = {}
    for matrix, (rows, columns) in matrix_shapes(model).items():
        if matrix.rpartition(".")[2] in targets:
            tensors[tensor_name(matrix, "A")] = torch.randn(rank, columns)
            tensors[tensor_name(matrix, "B")] = torch.randn(rows, rank)
    return tensors


def write(directory: Path, tensors: dict[str, Tensor] | None = None, **settings: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**SETTINGS, **settings}))
    save_file(random_tensors() if tensors is None else tensors, directory / "adapter_model.safetensors")
    return directory
