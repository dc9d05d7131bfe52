"""A GGUF file as a checkpoint."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from math import pi
from pathlib import Path

import torch
from torch import Tensor

from specialist.models import checks
from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.gguf_blocks import PLAIN, read_scales, read_weight
from specialist.models.gguf_reader import Gguf, GgufTensor, read_gguf
from specialist.models.gguf_vocabulary import read_gguf_vocabulary
from specialist.models.progress import Progress
from specialist.models.weights import Affine, LazyWeights, Weight, dense

ARCHITECTURES = ("llama", "qwen2")


def read_gguf_config(fields: ModelFields, tensors: Collection[str], vocab_size: int) -> ModelConfig:
    """`tensors` are the names in the file; they show whether there are biases and an output head."""
    architecture = fields.text("general.architecture")
    _check_is_whole_model(fields, architecture)
    heads = fields.integer(f"{architecture}.attention.head_count")
    hidden = fields.integer(f"{architecture}.embedding_length")
    head_dim = fields.integer(f"{architecture}.attention.key_length", max(1, hidden // heads))
    for same in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(f"{architecture}.{same}", head_dim) != head_dim:
            raise fields.wrong(f"{architecture}.{same}", f"must be the size of a head ({head_dim})")
    if fields.integer(f"{architecture}.vocab_size", vocab_size) != vocab_size:
        raise fields.wrong(f"{architecture}.vocab_size", f"must be the number of tokens ({vocab_size})")
    return ModelConfig(
        architecture="llama" if architecture == "llama" else "qwen2",
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=fields.integer(f"{architecture}.feed_forward_length"),
        num_layers=fields.integer(f"{architecture}.block_count", high=checks.MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=fields.integer(f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=fields.number(f"{architecture}.attention.layer_norm_rms_epsilon", high=1.0),
        rope=_rope(fields, architecture),
        context=fields.integer(f"{architecture}.context_length", high=checks.MAX_CONTEXT),
        tied_head="output.weight" not in tensors,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
    )


def _check_is_whole_model(fields: ModelFields, architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise ModelRefused(
            f"{fields.source}: architecture {architecture!r:.80} is not supported from a GGUF file: "
            f"use one of {', '.join(ARCHITECTURES)}, or the model's Hugging Face directory"
        )
    if fields.text("general.type", "model") != "model":
        raise fields.wrong("general.type", "must be 'model': this file is an adapter or a projector")
    if fields.integer("split.count", 1, low=0) > 1:
        raise fields.wrong("split.count", "must be 1: join the parts with `llama-gguf-split --merge` first")
    if fields.integer(f"{architecture}.expert_count", 0, low=0):
        raise fields.wrong(f"{architecture}.expert_count", "must be 0: mixtures of experts are not supported")
    if fields.has(f"{architecture}.attention.sliding_window"):
        raise fields.wrong(f"{architecture}.attention.sliding_window", "is not supported in a GGUF file")


def _rope(fields: ModelFields, architecture: str) -> Rope:
    prefix = f"{architecture}.rope"
    plain = Rope(theta=fields.number(f"{prefix}.freq_base", 10_000.0))
    kind = fields.text(f"{prefix}.scaling.type", "linear" if fields.has(f"{prefix}.scale_linear") else "none")
    factor = fields.number(f"{prefix}.scaling.factor", fields.number(f"{prefix}.scale_linear", 1.0), high=1e6)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return plain
    if kind == "linear":
        return replace(plain, kind="linear", factor=factor)
    if kind != "yarn":
        raise fields.wrong(f"{prefix}.scaling.type", f"must be none, linear or yarn, got {kind!r:.80}")
    if fields.has(f"{prefix}.scaling.yarn_log_multiplier") or fields.has(f"{prefix}.scaling.attn_factor"):
        raise fields.wrong(f"{prefix}.scaling", "changes yarn's attention factor, which is not supported")
    return replace(
        plain,
        kind="yarn",
        factor=factor,
        original_context=fields.integer(f"{prefix}.scaling.original_context_length", high=checks.MAX_CONTEXT),
        beta_fast=fields.number(f"{prefix}.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number(f"{prefix}.scaling.yarn_beta_slow", 1.0),
    )


def llama3_rope(rope: Rope, head_dim: int, factors: Tensor, source: str) -> Rope:
    """Derive Llama 3's scaling, which GGUF stores as one divisor per frequency, and check it."""
    factor = float(factors.max())
    found = replace(
        rope, kind="llama3", factor=factor, original_context=8192, low_freq_factor=1.0, high_freq_factor=4.0
    )
    same_shape = factors.shape == (head_dim // 2,) and rope.kind == "default"
    if not same_shape or not torch.allclose(_llama3_divisors(found, head_dim), factors.double(), rtol=1e-4):
        raise ModelRefused(
            f"{source}: rope_freqs.weight is not Llama 3's scaling of rotary frequencies, which is all that is "
            "supported: use the model's Hugging Face directory"
        )
    return found


def _llama3_divisors(rope: Rope, head_dim: int) -> Tensor:
    frequencies = rope.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    turns = rope.original_context * frequencies / (2 * pi)
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return 1 / ((1 - smooth) / rope.factor + smooth)


NAMES = checks.TensorNames(
    "Llama or Qwen2",
    top={"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"},
    layer={
        **{f"attn_{name}": name for name in "qkv"},
        **{f"ffn_{name}": name for name in ("gate", "up", "down")},
        **{"attn_norm": "attn_norm", "attn_output": "o", "ffn_norm": "mlp_norm"},
    },
    pattern=re.compile(r"blk\.(0|[1-9][0-9]{0,6})\.([a-z_]+)\.(weight|bias)"),
)
ROPE_FACTORS = "rope_freqs.weight"


def check_kinds(tensors: Mapping[str, GgufTensor], source: str) -> None:
    for name, stored in tensors.items():
        if len(stored.shape) != 2 and stored.kind.name not in PLAIN:
            raise ModelRefused(f"{source}: {name} is stored as {stored.kind.name}; only matrices may be quantised")


def _read(name: str, stored: GgufTensor, config: ModelConfig) -> Weight:
    weight = read_weight(stored)
    part = name.rpartition(".")[2].removesuffix("_bias")
    if config.architecture != "llama" or part not in ("q", "k"):
        return weight
    rows = split_rotary_pairs(stored.shape[0], config.head_dim)
    if isinstance(weight, Affine):
        return Affine(weight.bits, weight.q[rows], weight.scale[rows], weight.minimum[rows])
    return weight[rows]


def split_rotary_pairs(rows: int, head_dim: int) -> Tensor:
    """Reorder rows: GGUF stores the two halves of a Llama rotary pair side by side; here they are half a head apart."""
    return torch.arange(rows).view(-1, head_dim // 2, 2).transpose(1, 2).flatten()


def open_gguf(path: Path, progress: Progress) -> Checkpoint:
    source = path.name
    file = read_gguf(path)
    fields = ModelFields(source, file.metadata)
    vocabulary, vocab_size = read_gguf_vocabulary(fields)
    config = _with_rope_factors(read_gguf_config(fields, file.tensors, vocab_size), file, source)
    checks.check_config(config, source)
    stored_as = {name: stored for name, stored in file.tensors.items() if name != ROPE_FACTORS}
    tensors = {NAMES.rename(name, source): stored for name, stored in stored_as.items()}
    checks.check_shapes(config, {name: stored.shape for name, stored in tensors.items()}, source)
    check_kinds(tensors, source)
    checks.check_finite({name: partial(read_scales, stored) for name, stored in tensors.items()}, source, progress)
    weights = LazyWeights({name: partial(_read, name, stored, config) for name, stored in tensors.items()})
    return Checkpoint(config, vocabulary, checks.compute_revision({"gguf": path}, progress), weights)


def _with_rope_factors(config: ModelConfig, file: Gguf, source: str) -> ModelConfig:
    stored = file.tensors.get(ROPE_FACTORS)
    if stored is None:
        return config
    if stored.kind.name not in PLAIN:
        raise ModelRefused(f"{source}: {ROPE_FACTORS} is stored as {stored.kind.name}; it must be F32")
    return replace(config, rope=llama3_rope(config.rope, config.head_dim, dense(read_weight(stored)), source))
