"""Tiny random models with recurrent layers, one of each family, saved in the Hugging Face format."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tests.later import Later
from tests.models.tiny import CHAT_TEMPLATE, VOCAB_SIZE, tiny_tokenizer

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_ATTENTION = {**_COMMON, "intermediate_size": 80, "num_attention_heads": 6, "num_key_value_heads": 2}
_SHARED = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_chunk_size": 16}
_LAYERS = ["linear_attention", "full_attention", "linear_attention"]

HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba2": (
        "Mamba2",
        {
            **{name: value for name, value in _COMMON.items() if name != "max_position_embeddings"},
            **{"num_hidden_layers": 3, "num_heads": 6, "head_dim": 16, "state_size": 12, "n_groups": 2},
            **{"chunk_size": 16},
        },
    ),
    "bamba": (
        "Bamba",
        {**_ATTENTION, **_SHARED, "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_groups": 2},
    ),
    "falcon_h1": (
        "FalconH1",
        {
            **{**_ATTENTION, **_SHARED, "num_hidden_layers": 2, "mamba_n_groups": 3, "mamba_d_ssm": 96},
            **{"mamba_rms_norm": True, "mamba_norm_before_gate": False, "projectors_bias": True},
            **{"lm_head_multiplier": 0.5, "embedding_multiplier": 2.0, "mlp_multipliers": [0.7, 1.3]},
            **{"key_multiplier": 0.6, "attention_in_multiplier": 0.9, "attention_out_multiplier": 1.2},
            **{"ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 1.1], "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.8},
        },
    ),
    "nemotron_h": (
        "NemotronH",
        {
            **{
                **_ATTENTION,
                "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"],
            },
            **{
                "head_dim": 8,
                "time_step_min": 1e-30,
                "ssm_state_size": 12,
                "mamba_num_heads": 6,
                "mamba_head_dim": 10,
                "n_groups": 2,
            },
            "chunk_size": 16,
        },
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {
            **{**_ATTENTION, **_SHARED, "layer_types": _LAYERS, "num_hidden_layers": 3, "num_local_experts": 0},
            **{"shared_intermediate_size": 72, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
            **{"residual_multiplier": 0.4, "attention_multiplier": 0.2, "position_embedding_type": "rope"},
        },
    ),
    "zamba2": (
        "Zamba2",
        {
            **{**_ATTENTION, "num_key_value_heads": 6, "num_hidden_layers": 4},
            **{"layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"], "num_mem_blocks": 2},
            **{"mamba_d_state": 12, "n_mamba_heads": 6, "mamba_ngroups": 2, "chunk_size": 16, "adapter_rank": 4},
            **{"use_shared_attention_adapter": True, "use_mem_rope": True, "tie_word_embeddings": True},
            "time_step_min": 1e-30,  # transformers limits the steps of prompts by it
        },
    ),
    "lfm2": (
        "Lfm2",
        {
            **_ATTENTION,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "block_multiple_of": 8,
        }
        | {"tie_word_embeddings": False},
    ),
}
"""Families, the prefix of their class names in transformers, and the fields of a tiny model."""


def hybrid_model(family: str, *, seed: int = 0, strength: float = 1.0, **changes: Any) -> Any:
    """Return a random model of this family, whose weights are spread so widely that no two logits tie."""
    prefix, fields = HYBRIDS[family]
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about its own kernels
        config = getattr(transformers, f"{prefix}Config")(**{**fields, **changes})
        model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _spread(name, parameter, strength)
    return model


def _spread(name: str, parameter: torch.Tensor, strength: float) -> None:
    if "norm" in name:
        parameter.uniform_(0.5, 1.5)
    elif name.endswith(("dt_bias", ".D")):
        parameter.uniform_(-1.0, 1.0)
    elif name.endswith("A_log"):
        parameter.uniform_(-2.0, 1.0)
    elif name.endswith("bias"):
        parameter.normal_(std=0.3)
    elif "embed" in name or "head" in name:
        parameter.normal_(std=0.5)
    else:
        parameter.normal_(std=strength * parameter.shape[-1] ** -0.5)


def save_hybrid(directory: Path, family: str, **changes: Any) -> Any:
    """Save a random model of this family, with a tokenizer and a chat template. Return the model."""
    model = hybrid_model(family, **changes)
    model.save_pretrained(directory)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return model
