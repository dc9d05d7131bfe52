"""A Hugging Face directory as a checkpoint. Defaults of config.json are those of transformers."""

from pathlib import Path
from typing import NamedTuple, get_args

from specialist.models.checkpoint import Architecture, Checkpoint, ModelConfig, Rope
from specialist.models.checks import MAX_CONTEXT, MAX_LAYERS, check_config, check_finite, check_shapes, compute_revision
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.huggingface_files import ModelDirectory, read_index, without_tied_head
from specialist.models.huggingface_vocabulary import read_huggingface_vocabulary
from specialist.models.progress import Progress
from specialist.models.weights import LazyWeights

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


def read_rope(config: ModelFields, context: int) -> Rope:
    table = _table(config)
    nested = [name for name, value in table.values.items() if isinstance(value, dict)]
    if nested:
        raise table.wrong(nested[0], "applies to some layers only, which is not supported")
    kind = table.text("rope_type", table.text("type", "default"))
    theta = table.number("rope_theta", config.number("rope_theta", 10_000.0))
    if table.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise config.wrong("partial_rotary_factor", "must be 1: partial rotation of a head is not supported")
    if kind == "default":
        return Rope(theta)
    if kind in ("linear", "dynamic"):  # dynamic scales only beyond max_position_embeddings, where the context ends
        return Rope(theta, "linear" if kind == "linear" else "dynamic", _factor(table))
    if kind == "llama3":
        return _llama3(table, theta, _original_context(config, table, context))
    if kind == "yarn":
        return _yarn(table, theta, _original_context(config, table, context), context)
    raise table.wrong("rope_type", f"must be one of {', '.join(ROPE_TYPES)}, got {kind!r:.80}")


def _table(config: ModelFields) -> ModelFields:
    for name in ("rope_scaling", "rope_parameters"):
        if config.has(name) and config.values[name] != {}:
            return config.table(name)
    return ModelFields(config.source, {})


def _factor(table: ModelFields) -> float:
    return table.number("factor", high=1e6)


def _original_context(config: ModelFields, table: ModelFields, context: int) -> int:
    inside = table.integer("original_max_position_embeddings", context, high=MAX_CONTEXT)
    return config.integer("original_max_position_embeddings", inside, high=MAX_CONTEXT)


def _llama3(table: ModelFields, theta: float, original_context: int) -> Rope:
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if low >= high:
        raise table.wrong("high_freq_factor", f"must be above low_freq_factor ({low:g}), got {high:g}")
    return Rope(theta, "llama3", _factor(table), original_context, low_freq_factor=low, high_freq_factor=high)


def _yarn(table: ModelFields, theta: float, original_context: int, context: int) -> Rope:
    if theta == 1.0:
        raise table.wrong("rope_theta", "must not be 1")
    return Rope(
        theta,
        "yarn",
        _factor(table) if table.has("factor") else context / original_context,
        original_context,
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
        attention_factor=table.optional_number("attention_factor"),
        mscale=table.optional_number("mscale"),
        mscale_all_dim=table.optional_number("mscale_all_dim"),
        truncate=table.flag("truncate", True),
    )


class ModelFamily(NamedTuple):
    architecture: Architecture
    causal_class: str
    kv_heads: int | None = None  # the default of the config; None: one for each head
    head_dim: int | None = None  # the default of the config; None: derived
    context: int = 32_768


FAMILIES = {
    "llama": ModelFamily("llama", "LlamaForCausalLM", context=2048),
    "mistral": ModelFamily("mistral", "MistralForCausalLM", kv_heads=8, context=131_072),
    "qwen2": ModelFamily("qwen2", "Qwen2ForCausalLM", kv_heads=32),
    "qwen3": ModelFamily("qwen3", "Qwen3ForCausalLM", kv_heads=32, head_dim=128),
}


def read_huggingface_config(fields: ModelFields) -> ModelConfig:
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
        windows=_effective_windows(_windows(fields, architecture, layers), context),
    )


def _family(fields: ModelFields) -> ModelFamily:
    model_type = fields.text("model_type")
    family = FAMILIES.get(model_type)
    if family is None:
        raise ModelRefused(
            f"{fields.source}: model_type {model_type!r:.80} is not supported: "
            f"use a model of one of {', '.join(get_args(Architecture))}"
        )
    if fields.has("architectures") and family.causal_class not in fields.texts("architectures"):
        raise fields.wrong("architectures", f"must name {family.causal_class}: only language models are supported")
    if fields.has("quantization_config"):
        raise fields.wrong("quantization_config", "is not supported: use the unquantised model, or a GGUF file of it")
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.wrong("hidden_act", f"must be silu, got {fields.text('hidden_act')!r:.80}")
    return family


def _kv_heads(fields: ModelFields, family: ModelFamily, heads: int) -> int:
    """`null` means one KV head per head; a missing field means the family's default."""
    return heads if family.kv_heads is None or "num_key_value_heads" in fields.values else family.kv_heads


def _head_dim(fields: ModelFields, family: ModelFamily, hidden: int, heads: int) -> int | None:
    if family.head_dim is not None and "head_dim" not in fields.values:
        return family.head_dim
    if hidden % heads:
        raise fields.wrong("hidden_size", f"({hidden}) must be a multiple of num_attention_heads ({heads})")
    return hidden // heads


def _windows(fields: ModelFields, architecture: Architecture, layers: int) -> tuple[int | None, ...]:
    if architecture == "llama":
        return ()
    if architecture == "mistral":
        if "sliding_window" in fields.values and not fields.has("sliding_window"):
            return ()
        return (fields.integer("sliding_window", 4096),) * layers
    if not fields.flag("use_sliding_window", False):
        if any(kind != "full_attention" for kind in _layer_types(fields, layers)):
            raise fields.wrong("layer_types", "has sliding_attention though use_sliding_window is false")
        return ()
    window = fields.integer("sliding_window", 4096)
    return tuple(window if kind == "sliding_attention" else None for kind in _layer_types(fields, layers))


def _effective_windows(windows: tuple[int | None, ...], context: int) -> tuple[int | None, ...]:
    """Drop windows as wide as the context, which have no effect."""
    narrow = tuple(window if window is not None and window < context else None for window in windows)
    return narrow if any(narrow) else ()


def _layer_types(fields: ModelFields, layers: int) -> list[str]:
    if not fields.has("layer_types"):
        first = fields.integer("max_window_layers", 28, low=0)
        slides = fields.flag("use_sliding_window", False)
        return ["sliding_attention" if slides and i >= first else "full_attention" for i in range(layers)]
    kinds = fields.texts("layer_types")
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise fields.wrong("layer_types", f"must name full_attention or sliding_attention for each of {layers} layers")
    return kinds


VOCABULARY_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def open_directory(path: Path, progress: Progress) -> Checkpoint:
    directory = ModelDirectory(path)
    fields = directory.json("config.json")
    config = read_huggingface_config(fields)
    check_config(config, fields.source)
    vocabulary = read_huggingface_vocabulary(directory, fields)
    tensors = read_index(directory)
    if config.tied_head:
        tensors = without_tied_head(tensors, directory.name)
    check_shapes(config, {name: stored.shape for name, stored in tensors.items()}, directory.name)
    check_finite({name: stored.parts for name, stored in tensors.items()}, directory.name, progress)
    names = ["config.json", *(name for name in VOCABULARY_FILES if directory.has(name)), *directory.shards()]
    revision = compute_revision({name: directory.file(name) for name in names}, progress)
    weights = LazyWeights({name: stored.read for name, stored in tensors.items()})
    return Checkpoint(config, vocabulary, revision, weights)
