"""A Hugging Face directory as a checkpoint. Fields missing from config.json have the defaults of transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from tokenizers import Tokenizer

from specialist.models import checks
from specialist.models.checkpoint import Architecture, Checkpoint, ModelConfig, Vocabulary
from specialist.models.checks import MAX_CONTEXT, MAX_LAYERS, Inspection, check_vocabulary_ids
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.hub import VOCABULARY_FILES
from specialist.models.huggingface_files import (
    NAMES,
    ModelDirectory,
    Renamed,
    ShardTensor,
    StoredTensor,
    read_index,
    without_tied_head,
)
from specialist.models.hybrid_families import HYBRID_FAMILIES, read_hybrid_config, shared_blocks
from specialist.models.hybrid_tensors import assemble_hybrid, hybrid_names
from specialist.models.progress import Progress
from specialist.models.rope import read_rope
from specialist.models.weights import LazyWeights


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
    hybrid = HYBRID_FAMILIES.get(fields.text("model_type"))
    if hybrid is not None:
        _check_class(fields, hybrid.causal_class)
        return read_hybrid_config(fields)
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
            f"use a model of the type {' or '.join(get_args(Architecture))}"
        )
    _check_class(fields, family.causal_class)
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.wrong("hidden_act", f"must be silu, got {fields.text('hidden_act')!r:.80}")
    return family


def _check_class(fields: ModelFields, causal_class: str) -> None:
    if fields.has("architectures") and causal_class not in fields.texts("architectures"):
        raise fields.wrong("architectures", f"must name {causal_class}: only language models are supported")
    if fields.has("quantization_config"):
        raise fields.wrong("quantization_config", "is not supported: use the unquantised model, or a GGUF file of it")


def _kv_heads(fields: ModelFields, family: ModelFamily, heads: int) -> int:
    """Return the default number of KV heads: the family's if the field is missing, `heads` if it is null."""
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
    """Drop windows at least as wide as the context, which have no effect."""
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


PROBE = "int main() { return 0; } // \N{GREEK SMALL LETTER ALPHA}\n"


def read_huggingface_vocabulary(directory: ModelDirectory, config: ModelFields) -> Vocabulary:
    """Read the vocabulary. Its tokenizer neither recognises nor adds control tokens. Raises ModelRefused if the files
    are invalid, or if a token has no row in the model's embedding."""
    source = directory.json("tokenizer.json")
    settings = directory.optional_json("tokenizer_config.json")
    vocab_size = config.integer("vocab_size")
    control_ids = _control_ids(source)
    tokenizer = _build(plain_text_only(source, control_ids), source.source)
    check_vocabulary_ids([*tokenizer.get_vocab().values(), *control_ids.values()], vocab_size, source.source)
    eos_ids = _eos_ids(directory, config, settings, {**tokenizer.get_vocab(), **control_ids})
    check_vocabulary_ids(eos_ids, vocab_size, f"{directory.name}: eos_token_id")
    return Vocabulary(
        tokenizer,
        control_ids,
        bos_id=_bos_id(source, settings, control_ids),
        eos_ids=eos_ids,
        chat_template=_chat_template(directory, settings),
        bos_token=_named_token(settings, "bos_token", control_ids),
        eos_token=_named_token(settings, "eos_token", control_ids),
    )


def _control_ids(source: ModelFields) -> dict[str, int]:
    added = [entry for entry in _added_tokens(source) if entry.values.get("special") is True]
    ids = {entry.text("content"): entry.integer("id", low=0) for entry in added}
    model, is_byte_level = source.table("model"), '"ByteLevel"' in json.dumps(source.values.get("pre_tokenizer"))
    if model.has("unk_token") and not model.flag("byte_fallback", False) and not is_byte_level:
        ids.pop(model.text("unk_token"), None)
    return ids


def _added_tokens(source: ModelFields) -> list[ModelFields]:
    entries = source.listed("added_tokens") if source.has("added_tokens") else []
    fields = [ModelFields(f"{source.source}: added_tokens", entry) for entry in entries if isinstance(entry, dict)]
    if len(fields) != len(entries):
        raise source.wrong("added_tokens", "must contain objects")
    return fields


def plain_text_only(source: ModelFields, control_ids: Mapping[str, int]) -> dict[str, Any]:
    """Return tokenizer.json without its control tokens, so that no text is encoded as a control token. Other added
    tokens, such as Qwen's <tool_call>, move into the vocabulary: the library would number them anew."""
    model = source.table("model")
    if model.text("type", "BPE") != "BPE":
        raise model.wrong("type", f"must be BPE, got {model.text('type')!r:.80}: convert the tokenizer")
    added = [entry for entry in _added_tokens(source) if entry.text("content") not in control_ids]
    vocab = {text: i for text, i in model.table("vocab").values.items() if text not in control_ids}
    vocab |= {entry.text("content"): entry.integer("id", low=0) for entry in added}
    merges = [pair for pair in model.listed("merges") if _merged(pair, model) not in control_ids]
    unknown = model.values.get("unk_token")
    plain = {**model.values, "vocab": vocab, "merges": merges, "unk_token": unknown if unknown in vocab else None}
    outside = {"post_processor": None, "truncation": None, "padding": None}
    return {**source.values, **outside, "model": plain, "added_tokens": [entry.values for entry in added]}


def _merged(pair: object, model: ModelFields) -> str:
    """Return the text that a merge produces. A merge is "a b" in older files, ["a", "b"] in newer ones."""
    parts = pair.split(" ") if isinstance(pair, str) else pair
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise model.wrong("merges", f"must contain pairs of words, got {pair!r:.80}")
    return "".join(parts)


def _build(content: dict[str, Any], source: str) -> Tokenizer:
    """Build the tokenizer and try it once, so that a broken one fails here and not in a request."""
    try:
        tokenizer = Tokenizer.from_str(json.dumps(content))
        tokenizer.decode(tokenizer.encode(PROBE, add_special_tokens=False).ids)
    except Exception as error:
        raise ModelRefused(f"{source}: the tokenizer is damaged: {error}; fetch it again") from None
    return tokenizer


def _bos_id(source: ModelFields, settings: ModelFields, control_ids: Mapping[str, int]) -> int | None:
    """Return the token that begins a plain prompt, if any. The default is the token that the post-processor adds."""
    if not settings.has("add_bos_token"):
        return _template_bos(source.values.get("post_processor"), control_ids)
    if not settings.flag("add_bos_token"):
        return None
    text = _token_text(settings, "bos_token")
    if text is None or text not in control_ids:
        raise settings.wrong("bos_token", f"must be one of the tokenizer's control tokens, got {text!r:.80}")
    return control_ids[text]


def _template_bos(processor: object, control_ids: Mapping[str, int]) -> int | None:
    if not isinstance(processor, dict):
        return None
    for inner in processor.get("processors") or []:
        found = _template_bos(inner, control_ids)
        if found is not None:
            return found
    first = next(iter(processor.get("single") or []), None)
    special = first.get("SpecialToken") if isinstance(first, dict) else None
    text = special.get("id") if isinstance(special, dict) else None
    return control_ids.get(text) if isinstance(text, str) else None


def _eos_ids(
    directory: ModelDirectory, config: ModelFields, settings: ModelFields, ids: Mapping[str, int]
) -> frozenset[int]:
    """Return all tokens that any of the files declares to end an answer."""
    found: set[int] = set()
    for fields in (config, directory.optional_json("generation_config.json")):
        value = fields.values.get("eos_token_id")
        listed = value if isinstance(value, list) else [] if value is None else [value]
        found |= {ModelFields(fields.source, {"eos_token_id": each}).integer("eos_token_id", low=0) for each in listed}
    text = _token_text(settings, "eos_token")
    if text is not None and text not in ids:
        raise settings.wrong("eos_token", f"must be one of the tokenizer's tokens, got {text!r:.80}")
    return frozenset(found if text is None else found | {ids[text]})


def _named_token(settings: ModelFields, name: str, control_ids: Mapping[str, int]) -> str | None:
    text = _token_text(settings, name)
    return text if text in control_ids else None


def _token_text(settings: ModelFields, name: str) -> str | None:
    """Return the token's text. In older files the value is an object that holds the text as `content`."""
    if isinstance(settings.values.get(name), dict):
        return settings.table(name).optional_text("content")
    return settings.optional_text(name)


def _chat_template(directory: ModelDirectory, settings: ModelFields) -> str | None:
    """Return chat_template.jinja or else the field chat_template; if that is a list, its entry named `default`."""
    if directory.has("chat_template.jinja"):
        try:
            return directory.file("chat_template.jinja").read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ModelRefused(f"{directory.name}: chat_template.jinja is not UTF-8: fetch it again") from None
    template = settings.values.get("chat_template")
    if not isinstance(template, list):
        return settings.optional_text("chat_template")
    named = [ModelFields(settings.source, entry) for entry in template if isinstance(entry, dict)]
    return next((entry.text("template") for entry in named if entry.values.get("name") == "default"), None)


def inspect_directory(path: Path) -> Inspection:
    """Check configuration, vocabulary and tensors, each even if another is refused. No weights are checked."""
    directory, found = ModelDirectory(path), Inspection()
    fields = found.attempt(lambda: directory.json("config.json"))
    if fields is not None:
        found.config = found.attempt(lambda: _checked_config(fields))
        found.vocabulary = found.attempt(lambda: read_huggingface_vocabulary(directory, fields))
    config = found.config
    tensors = found.attempt(lambda: read_index(directory, NAMES.rename if fields is None else _tensor_names(fields)))
    if tensors is not None and config is not None and fields is not None:
        found.attempt(lambda: _fitting_tensors(tensors, config, fields))
    return found


def _checked_config(fields: ModelFields) -> ModelConfig:
    config = read_huggingface_config(fields)
    checks.check_config(config, fields.source)
    return config


def _tensor_names(fields: ModelFields) -> Renamed:
    return hybrid_names(fields.text("model_type", "")) or NAMES.rename


def _fitting_tensors(
    tensors: Mapping[str, ShardTensor], config: ModelConfig, fields: ModelFields
) -> Mapping[str, StoredTensor]:
    source = fields.source.rpartition("/")[0]
    found: Mapping[str, StoredTensor] = tensors
    hybrid = HYBRID_FAMILIES.get(config.architecture)
    if hybrid is not None:
        found = assemble_hybrid(config, tensors, hybrid.scales(fields, config), shared_blocks(fields), source)
    fitting = without_tied_head(found, source) if config.tied_head else found
    checks.check_shapes(config, {name: stored.shape for name, stored in fitting.items()}, source)
    return fitting


def open_directory(path: Path, progress: Progress) -> Checkpoint:
    directory = ModelDirectory(path)
    fields = directory.json("config.json")
    config = _checked_config(fields)
    vocabulary = read_huggingface_vocabulary(directory, fields)
    tensors = _fitting_tensors(read_index(directory, _tensor_names(fields)), config, fields)
    checks.check_finite({name: stored.parts for name, stored in tensors.items()}, directory.name, progress)
    names = ["config.json", *(name for name in VOCABULARY_FILES if directory.has(name)), *directory.shards()]
    revision = checks.compute_revision({name: directory.file(name) for name in names}, progress)
    weights = LazyWeights({name: stored.read for name, stored in tensors.items()})
    return Checkpoint(config, vocabulary, revision, weights)
