"""Tiny random models of every supported family, as transformers models and as checkpoints."""

import warnings
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope, Vocabulary, expected_shapes
from tests.models.tiny import classes
from tests.native.device import DEVICE

SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def random_model(family: str, *, seed: int = 0, strength: float = 1.4, **changes: Any) -> Any:
    """Return a model whose weights are spread so widely that no two logits tie and answers do not repeat."""
    config_class, model_class = classes(family)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about its own rope settings
        model = model_class(config_class(**{**SMALL, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(
                    std=0.5 if "embed" in name or "head" in name else strength * parameter.shape[-1] ** -0.5
                )
    return model.to(DEVICE)


def checkpoint_of(model: Any) -> Checkpoint:
    config = model_config(model.config)
    state = model.state_dict()
    weights = {name: state[_source(name)].cpu() for name, _ in expected_shapes(config)}
    vocabulary = Vocabulary(Tokenizer(models.BPE()), {}, None, frozenset(), None)
    return Checkpoint(config, vocabulary, "0" * 64, weights)


def _source(name: str) -> str:
    outer = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
    if name in outer:
        return outer[name]
    _, layer, part = name.split(".")
    module = MODULES[part.removesuffix("_bias")]
    return f"model.layers.{layer}.{module}.{'bias' if part.endswith('_bias') else 'weight'}"


def model_config(config: Any) -> ModelConfig:
    family = config.model_type
    biased = getattr(config, "attention_bias", family == "qwen2")
    layers = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    return ModelConfig(
        architecture=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        norm_eps=config.rms_norm_eps,
        rope=rope_of(config.rope_parameters),
        context=config.max_position_embeddings,
        tied_head=config.tie_word_embeddings,
        qkv_bias=biased,
        output_bias=biased and family != "qwen2",
        mlp_bias=getattr(config, "mlp_bias", False),
        qk_norm=family == "qwen3",
        windows=tuple(window if kind == "sliding_attention" else None for kind in layers),
    )


def rope_of(parameters: dict[str, Any]) -> Rope:
    names = {"rope_theta": "theta", "rope_type": "kind", "original_max_position_embeddings": "original_context"}
    return Rope(**{names.get(name, name): value for name, value in parameters.items()})


@torch.no_grad()
def greedy_if(model: Any, prompt: tuple[int, ...], guess: tuple[int, ...]) -> tuple[tuple[int, ...], Tensor]:
    """Return the same as `greedy`. If `guess` is the right answer, a single step is enough, because it checks all
    tokens of the guess. A model with dynamic rope always needs a step per token."""
    if model.config.rope_parameters["rope_type"] == "dynamic":
        return greedy(model, prompt, len(guess))
    given = torch.tensor([prompt + guess[:-1]], device=DEVICE)
    logits = model(given, use_cache=False).logits[0, len(prompt) - 1 :].float()
    is_right = logits.argmax(-1).tolist() == list(guess)
    return (guess, logits) if is_right else greedy(model, prompt, len(guess))


@torch.no_grad()
def greedy(model: Any, prompt: tuple[int, ...], count: int) -> tuple[tuple[int, ...], Tensor]:
    """Return the next `count` tokens and the logits from which each was taken. Every token is computed in its own step,
    with a cache."""
    tokens: list[int] = []
    logits = []
    given, cache = torch.tensor([prompt], device=DEVICE), None
    for _ in range(count):
        out = model(given, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits[0, -1].float())
        tokens.append(int(logits[-1].argmax()))
        given = torch.tensor([[tokens[-1]]], device=DEVICE)
    return tuple(tokens), torch.stack(logits)
