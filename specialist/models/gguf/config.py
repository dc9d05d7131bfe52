"""The shape of a model out of a GGUF file's metadata."""

from collections.abc import Collection
from dataclasses import replace
from math import pi

import torch
from torch import Tensor

from specialist.models.checks import MAX_CONTEXT, MAX_LAYERS
from specialist.models.config import ModelConfig, Rope
from specialist.models.errors import ModelRefused
from specialist.models.fields import Fields

ARCHITECTURES = ("llama", "qwen2")


def read_config(fields: Fields, tensors: Collection[str], vocab_size: int) -> ModelConfig:
    """`tensors` by their names in the file: biases and the output head are where they are found."""
    architecture = fields.text("general.architecture")
    _refuse_what_is_not_a_whole_model(fields, architecture)
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
        num_layers=fields.integer(f"{architecture}.block_count", high=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=fields.integer(f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=fields.number(f"{architecture}.attention.layer_norm_rms_epsilon", high=1.0),
        rope=_rope(fields, architecture),
        context=fields.integer(f"{architecture}.context_length", high=MAX_CONTEXT),
        tied_head="output.weight" not in tensors,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
    )


def _refuse_what_is_not_a_whole_model(fields: Fields, architecture: str) -> None:
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


def _rope(fields: Fields, architecture: str) -> Rope:
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
        original_context=fields.integer(f"{prefix}.scaling.original_context_length", high=MAX_CONTEXT),
        beta_fast=fields.number(f"{prefix}.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number(f"{prefix}.scaling.yarn_beta_slow", 1.0),
    )


def llama3_rope(rope: Rope, head_dim: int, factors: Tensor, source: str) -> Rope:
    """Llama 3's scaling comes as a tensor of divisors, one a frequency. Found again from it, and compared with it."""
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
