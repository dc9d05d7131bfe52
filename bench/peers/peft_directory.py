"""Random LoRA adapters on disk, as PEFT would have saved them."""

import json
from collections.abc import Mapping
from pathlib import Path

TARGETS = {"q": "self_attn.q_proj", "v": "self_attn.v_proj"}
"""What PEFT changes of such models where it is not told otherwise."""
RANK = 16


def write_adapter(directory: Path, shapes: Mapping[str, tuple[int, ...]], seed: int) -> Path:
    """`shapes` are [out, in] of a model's matrices by name, `layers.0.q`."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (rows, columns) in sorted(shapes.items()):  # the same of one seed, whoever writes it
        layers, layer, kind = name.split(".")
        if kind in TARGETS:
            stem = f"base_model.model.model.{layers}.{layer}.{TARGETS[kind]}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator) / columns**0.5
            tensors[f"{stem}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator) / RANK
    directory.mkdir(parents=True)
    modules = [target.rpartition(".")[2] for target in TARGETS.values()]
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none", "target_modules": modules}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory
