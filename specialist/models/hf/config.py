"""The shape of a model out of config.json. What the file leaves out is what transformers takes for that family."""

from typing import NamedTuple, get_args

from specialist.models.checks import MAX_CONTEXT, MAX_LAYERS
from specialist.models.config import Architecture, ModelConfig
from specialist.models.errors import ModelRefused
from specialist.models.fields import Fields
from specialist.models.hf.rope import read_rope


class Family(NamedTuple):
    architecture: Architecture
    causal_class: str
    kv_heads: int | None = None
    """Where the config leaves them out; None: as many as heads."""
    head_dim: int | None = None
    """Where the config leaves it out; None: derived."""
    context: int = 32_768


FAMILIES = {
    "llama": Family("llama", "LlamaForCausalLM", context=2048),
    "mistral": Family("mistral", "MistralForCausalLM", kv_heads=8, context=131_072),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", kv_heads=32),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", kv_heads=32, head_dim=128),
}


def read_config(fields: Fields) -> ModelConfig:
    family = _family(fields)
    architecture = family.architecture
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    context = fields.integer("max_position_embeddings", family.context, high=MAX_CONTEXT)
    has_bias = architecture in ("llama", "qwen3") and fields.flag("attention_bias", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", _kv_heads(fields, family, heads)),
        head_dim=fields.integer("head_dim", _head_dim(fields, family, hidden, heads)),
        norm_eps=fields.number("rms_norm_eps", 1e-6, high=1.0),
        rope=read_rope(fields, context),
        context=context,
        tied_head=fields.flag("tie_word_embeddings", False),
        qkv_bias=architecture == "qwen2" or has_bias,
        output_bias=has_bias,
        mlp_bias=architecture == "llama" and fields.flag("mlp_bias", False),
        qk_norm=architecture == "qwen3",
        windows=_those_that_matter(_windows(fields, architecture, layers), context),
    )


def _family(fields: Fields) -> Family:
    model_type = fields.text("model_type")
    family = FAMILIES.get(model_type)
    if family is None:
        raise ModelRefused(
            f"{fields.source}: model_type {model_type!r:.80} is not supported: "
            f"use a model of one of {', '.join(get_args(Architecture))}"
        )
    if fields.has("architectures") and family.causal_class not in fields.texts("architectures"):
        raise fields.wrong("architectures", f"must name {family.causal_class}: only language models are served")
    if fields.has("quantization_config"):
        raise fields.wrong("quantization_config", "is not supported: use the unquantised model, or a GGUF file of it")
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.wrong("hidden_act", f"must be silu, got {fields.text('hidden_act')!r:.80}")
    return family


def _kv_heads(fields: Fields, family: Family, heads: int) -> int:
    """`null` means one for each head; left out, what the family has."""
    return heads if family.kv_heads is None or "num_key_value_heads" in fields.values else family.kv_heads


def _head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int | None:
    if family.head_dim is not None and "head_dim" not in fields.values:
        return family.head_dim
    if hidden % heads:
        raise fields.wrong("hidden_size", f"({hidden}) must be a multiple of num_attention_heads ({heads})")
    return hidden // heads


def _windows(fields: Fields, architecture: Architecture, layers: int) -> tuple[int | None, ...]:
    if architecture == "llama":
        return ()
    if architecture == "mistral":
        if "sliding_window" in fields.values and not fields.has("sliding_window"):
            return ()
        return (fields.integer("sliding_window", 4096),) * layers
    if not fields.flag("use_sliding_window", False):
        _refuse_unless(all(kind == "full_attention" for kind in _layer_types(fields, layers)), fields)
        return ()
    window = fields.integer("sliding_window", 4096)
    return tuple(window if kind == "sliding_attention" else None for kind in _layer_types(fields, layers))


def _those_that_matter(windows: tuple[int | None, ...], context: int) -> tuple[int | None, ...]:
    """A window as wide as the context hides nothing."""
    narrow = tuple(window if window is not None and window < context else None for window in windows)
    return narrow if any(narrow) else ()


def _layer_types(fields: Fields, layers: int) -> list[str]:
    if not fields.has("layer_types"):
        first = fields.integer("max_window_layers", 28, low=0)
        slides = fields.flag("use_sliding_window", False)
        return ["sliding_attention" if slides and i >= first else "full_attention" for i in range(layers)]
    kinds = fields.texts("layer_types")
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise fields.wrong("layer_types", f"must name full_attention or sliding_attention for each of {layers} layers")
    return kinds


def _refuse_unless(consistent: bool, fields: Fields) -> None:
    if not consistent:
        raise fields.wrong("layer_types", "has sliding_attention though use_sliding_window is false")
