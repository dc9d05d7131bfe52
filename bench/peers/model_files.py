"""Model and adapter files for peers: Hugging Face and PEFT directories.

Runners import this module in a peer's own environment, where the packages of this project are missing.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope, Vocabulary


def demo_checkpoint() -> "Checkpoint":
    from specialist.models.demo import cache_directory, demo_model
    from specialist.models.open import open_checkpoint
    from specialist.models.progress import bar

    return open_checkpoint(demo_model(cache_directory(), bar()))


def write_hf_tokenizer(checkpoint: "Checkpoint", parent: Path) -> Path:
    def write(draft: Path) -> None:
        for name, fields in (
            ("tokenizer.json", hf_tokenizer(checkpoint.vocabulary)),
            ("tokenizer_config.json", _settings(checkpoint.vocabulary)),
        ):
            (draft / name).write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")

    return _write_once(parent / f"{checkpoint.revision}.words", write)


def _write_once(directory: Path, write: Callable[[Path], None]) -> Path:
    """Write the directory unless it exists. It appears with all its files or not at all."""
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(dir=directory.parent, prefix=".draft-"))
        try:
            write(draft)
            draft.replace(directory)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return directory


def hf_tokenizer(vocabulary: "Vocabulary") -> dict[str, Any]:
    """Return the tokenizer with control tokens, which Octet's own tokenizer leaves out."""
    fields: dict[str, Any] = json.loads(vocabulary.tokenizer.to_str())
    fields["model"]["vocab"] |= vocabulary.control_ids
    shape = {**dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False), "special": True}
    control = [{"id": number, "content": text, **shape} for text, number in vocabulary.control_ids.items()]
    fields["added_tokens"] = sorted([*fields["added_tokens"], *control], key=lambda token: int(token["id"]))
    return fields


def _settings(vocabulary: "Vocabulary") -> dict[str, Any]:
    named = {name: getattr(vocabulary, name) for name in ("bos_token", "eos_token", "chat_template")}
    known = {name: value for name, value in named.items() if value is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **known}


def write_hf_directory(checkpoint: "Checkpoint", parent: Path) -> Path:
    from specialist.models.weights import dense

    def write(draft: Path) -> None:
        (draft / "config.json").write_text(json.dumps(hf_config(checkpoint.config), indent=1), encoding="utf-8")
        tensors = {hf_name(name): dense(weight).contiguous() for name, weight in checkpoint.weights.items()}
        save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})

    return _write_once(parent / checkpoint.revision, write)


def hf_config(config: "ModelConfig") -> dict[str, Any]:
    """Return a config without an end-of-text token, so that answers have the requested length."""
    from specialist.models.huggingface import FAMILIES

    if any(window is not None for window in config.windows):
        raise ValueError("windows: models with sliding-window attention cannot be exported for peers")
    if config.architecture == "llama" and config.qkv_bias != config.output_bias:
        raise ValueError("qkv_bias and output_bias must be equal: transformers' Llama has both or none")
    return {
        "architectures": [FAMILIES[config.architecture].causal_class],
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


def _rope_scaling(rope: "Rope") -> dict[str, Any] | None:
    if rope.kind == "default":
        return None
    settings = asdict(rope)
    kind, theta, original = settings.pop("kind"), settings.pop("theta"), settings.pop("original_context")
    known = {name: value for name, value in settings.items() if value is not None}
    return {"rope_type": kind, "rope_theta": theta, "original_max_position_embeddings": original, **known}


def hf_name(name: str) -> str:
    from specialist.models.huggingface_files import NAMES

    layer, _, part = name.rpartition(".")
    tensor = part.removesuffix("_bias")
    theirs = {ours: theirs for theirs, ours in (NAMES.layer if layer else NAMES.top).items()}[tensor]
    return f"model.{layer}.{theirs}.{'weight' if tensor == part else 'bias'}" if layer else theirs


TARGETS = {"q": "self_attn.q_proj", "v": "self_attn.v_proj"}
"""The modules that PEFT changes by default."""
RANK = 16


def write_adapter(directory: Path, shapes: Mapping[str, tuple[int, ...]], seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (rows, columns) in sorted(shapes.items()):  # sorted, so that a seed gives the same weights
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
