"""Hugging Face models with recurrent layers: their configurations and the factors that are folded into their weights.
Fields missing from config.json have the defaults of transformers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from specialist.models.checkpoint import (
    Activation,
    Architecture,
    GateNorm,
    LayerPart,
    ModelConfig,
    Rope,
    ShortConv,
    StateSpace,
)
from specialist.models.checks import MAX_CONTEXT, MAX_LAYERS
from specialist.models.fields import LARGEST, ModelFields
from specialist.models.rope import read_rope

UNBOUNDED_CONTEXT = 1 << 20  # of models whose state does not grow; the replica's pool limits it further
MAX_WIDTH = 8  # of a convolution; the C++ kernels keep so many tokens in registers
_INFINITY = {"__float__": "Infinity"}  # as transformers writes it
Scales = Mapping[str, float | Tensor]
"""Factors for a layer's weights, by name; a tensor has one for each row."""
_LAYER_KINDS: Mapping[str, LayerPart] = {
    **{"full_attention": "attention", "attention": "attention", "*": "attention"},
    **{"linear_attention": "ssm", "mamba": "ssm", "M": "ssm", "mlp": "mlp", "-": "mlp", "conv": "conv"},
    "hybrid": "shared",
}


class HybridFamily(NamedTuple):
    causal_class: str
    read: Callable[[ModelFields], ModelConfig]
    scales: Callable[[ModelFields, ModelConfig], Scales] = lambda _fields, _config: {}


def _config(
    fields: ModelFields,
    architecture: Architecture,
    parts: Sequence[tuple[LayerPart, ...]],
    *,
    inner: int,
    norm_eps: float,
    context: int,
    tied: bool,
) -> ModelConfig:
    """Return a configuration without attention; all families share this much."""
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=inner,
        num_layers=len(parts),
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        norm_eps=norm_eps,
        rope=Rope(),
        context=fields.integer("max_position_embeddings", context, high=MAX_CONTEXT),
        tied_head=fields.flag("tie_word_embeddings", tied),
        parts=tuple(parts),
        rotary_dim=0,
    )


def _with_attention(
    config: ModelConfig,
    fields: ModelFields,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    has_own_size: bool = True,
    rotates: bool = True,
    theta: float = 10_000.0,
    rotated: float = 1.0,
) -> ModelConfig:
    """Add the fields of attention; `kv_heads` and `head_dim` are defaults, or follow without `has_own_size`."""
    heads = fields.integer("num_attention_heads")
    if head_dim is None and config.hidden_size % heads:
        raise fields.wrong("hidden_size", f"must be a multiple of num_attention_heads ({heads})")
    size = head_dim or config.hidden_size // heads
    if has_own_size:
        size = fields.integer("head_dim", size)
    if "num_key_value_heads" in fields.values:
        kv_heads = None  # null means one for each head
    bias = fields.flag("attention_bias", False)
    return replace(
        config,
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", kv_heads or heads),
        head_dim=size,
        rope=read_rope(fields, config.context, theta=theta, is_partial=rotated != 1.0) if rotates else Rope(),
        rotary_dim=int(size * rotated) if rotates else 0,
        qkv_bias=bias,
        output_bias=bias,
    )


def _kinds(fields: ModelFields, allowed: Sequence[LayerPart], *names: str) -> list[LayerPart]:
    """Return each layer's kind, from the first of these fields that there is."""
    name = next((name for name in names if fields.has(name)), names[0])
    listed = list(fields.text(name)) if isinstance(fields.values.get(name), str) else fields.texts(name)
    for kind in listed:
        if _LAYER_KINDS.get(kind) not in allowed:
            raise fields.wrong(name, f"names {kind!r:.80}: layers of this kind are not supported")
    if not 0 < len(listed) <= MAX_LAYERS:
        raise fields.wrong(name, f"must have 1 to {MAX_LAYERS} layers, got {len(listed)}")
    return [_LAYER_KINDS[kind] for kind in listed]


def _each_with_mlp(kinds: Sequence[LayerPart]) -> list[tuple[LayerPart, ...]]:
    return [(kind, "mlp") for kind in kinds]


def _layer_count(fields: ModelFields) -> int:
    return fields.integer("num_hidden_layers", high=MAX_LAYERS)


def _silu_only(fields: ModelFields, name: str = "hidden_act") -> None:
    if fields.text(name, "silu") != "silu":
        raise fields.wrong(name, f"must be silu, got {fields.text(name)!r:.80}")


def _limit(value: object) -> float | None:
    """Return a limit of step sizes; None if it is no number."""
    if value == _INFINITY:
        return inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return min(float(value), inf) if abs(value) < LARGEST or value == inf else None


def _step_limits(fields: ModelFields, name: str = "time_step_limit") -> tuple[float, float]:
    if not fields.has(name):
        return 0.0, inf
    limits = [_limit(each) for each in fields.listed(name)]
    low, high = limits if len(limits) == 2 else (None, None)
    if low is None or high is None or not 0 <= low < high:
        raise fields.wrong(name, f"must be two numbers, the first smaller, got {fields.values[name]!r:.80}")
    return low, high


def _mamba(fields: ModelFields, hidden: int, *, norm_eps: float, groups: int = 1) -> StateSpace:
    """Read the fields that Bamba, Falcon-H1 and Granite share."""
    heads = fields.integer("mamba_n_heads", 128)
    inner = fields.integer("mamba_expand", 2) * hidden
    size = fields.values.get("mamba_d_head", "auto")
    low, high = _step_limits(fields)
    return StateSpace(
        num_heads=heads,
        head_dim=inner // heads if size in ("auto", None) else fields.integer("mamba_d_head"),
        state_size=fields.integer("mamba_d_state", 256),
        num_groups=fields.integer("mamba_n_groups", groups),
        width=fields.integer("mamba_d_conv", 4, low=2, high=MAX_WIDTH),
        conv_bias=fields.flag("mamba_conv_bias", True),
        in_bias=fields.flag("mamba_proj_bias", False),
        out_bias=fields.flag("mamba_proj_bias", False),
        norm_eps=norm_eps,
        least_step=low,
        most_step=high,
    )


def _read_mamba2(fields: ModelFields) -> ModelConfig:
    _silu_only(fields)
    eps = fields.number("layer_norm_epsilon", 1e-5, high=1.0)
    bias = fields.flag("use_bias", False)
    low, high = _step_limits(fields)
    ssm = StateSpace(
        num_heads=fields.integer("num_heads", 128),
        head_dim=fields.integer("head_dim", 64),
        state_size=fields.integer("state_size", 128),
        num_groups=fields.integer("n_groups", 8),
        width=fields.integer("conv_kernel", 4, low=2, high=MAX_WIDTH),
        conv_bias=fields.flag("use_conv_bias", True),
        in_bias=bias,
        out_bias=bias,
        norm_eps=eps,
        least_step=low,
        most_step=high,
    )
    parts: list[tuple[LayerPart, ...]] = [("ssm",)] * _layer_count(fields)
    config = _config(fields, "mamba2", parts, inner=0, norm_eps=eps, context=UNBOUNDED_CONTEXT, tied=False)
    return replace(config, ssm=ssm)


def _read_bamba(fields: ModelFields) -> ModelConfig:
    _silu_only(fields)
    eps = fields.number("rms_norm_eps", 1e-5, high=1.0)
    layers = _layer_count(fields)
    listed = fields.listed("attn_layer_indices") if fields.has("attn_layer_indices") else []
    if not all(type(index) is int and 0 <= index < layers for index in listed):
        raise fields.wrong("attn_layer_indices", f"must be numbers of the {layers} layers, got {listed!r:.80}")
    parts: list[tuple[LayerPart, ...]] = [("attention" if i in listed else "ssm", "mlp") for i in range(layers)]
    config = _config(
        fields,
        "bamba",
        parts,
        inner=fields.integer("intermediate_size", 14_336),
        norm_eps=eps,
        context=262_144,
        tied=False,
    )
    table = fields.values.get("rope_parameters")
    rotated = 0.5
    if isinstance(table, dict):
        rotated = fields.table("rope_parameters").number("partial_rotary_factor", rotated, high=1.0)
    config = _with_attention(config, fields, kv_heads=8, rotated=rotated)
    ssm = _mamba(fields, config.hidden_size, norm_eps=eps)
    return replace(config, ssm=ssm, mlp_bias=fields.flag("mlp_bias", False))


def _read_falcon_h1(fields: ModelFields) -> ModelConfig:
    _silu_only(fields)
    eps = fields.number("rms_norm_eps", 1e-5, high=1.0)
    parts: list[tuple[LayerPart, ...]] = [("attention", "ssm", "mlp")] * _layer_count(fields)
    inner = fields.integer("intermediate_size", 14_336)
    config = _config(fields, "falcon_h1", parts, inner=inner, norm_eps=eps, context=8192, tied=False)
    config = _with_attention(config, fields, kv_heads=8)
    ssm = _mamba(fields, config.hidden_size, norm_eps=eps)
    is_auto = fields.values.get("mamba_d_head", "auto") in ("auto", None)
    if is_auto and (fields.has("mamba_d_ssm") or "mamba_d_ssm" not in fields.values):
        ssm = replace(ssm, head_dim=fields.integer("mamba_d_ssm", 1024) // ssm.num_heads)
    is_last = fields.flag("mamba_norm_before_gate", True)
    norm: GateNorm = "gate_last" if is_last else "gate_first"
    if not fields.flag("mamba_rms_norm", False):
        norm = "none"
    out_bias = fields.flag("projectors_bias", False)
    return replace(
        config,
        ssm=replace(ssm, norm=norm, norm_groups=ssm.num_groups, out_bias=out_bias),
        mlp_bias=fields.flag("mlp_bias", False),
        embed_scale=fields.number("embedding_multiplier", 1.0),
        logit_scale=fields.number("lm_head_multiplier", 1.0),
    )


def _falcon_h1_scales(fields: ModelFields, config: ModelConfig) -> Scales:
    ssm = config.ssm
    if ssm is None:
        return {}
    gate, down = _factors(fields, "mlp_multipliers", 2)
    enters, leaves = fields.number("attention_in_multiplier", 1.0), fields.number("attention_out_multiplier", 1.0)
    key = fields.number("key_multiplier", 1.0)
    out = fields.number("ssm_out_multiplier", 1.0)
    shared = ssm.num_groups * ssm.state_size
    sizes = torch.tensor([ssm.inner_size, ssm.inner_size, shared, shared, ssm.num_heads])
    rows = torch.tensor(_factors(fields, "ssm_multipliers", 5)).repeat_interleave(sizes)
    return {
        **{"gate": gate, "gate_bias": gate, "down": down, "down_bias": down},
        **{"q": enters, "k": enters * key, "k_bias": key, "v": enters, "o": leaves, "o_bias": leaves},
        **{"in": rows * fields.number("ssm_in_multiplier", 1.0), "in_bias": rows, "out": out, "out_bias": out},
    }


def _factors(fields: ModelFields, name: str, count: int) -> list[float]:
    if not fields.has(name):
        return [1.0] * count
    listed = fields.listed(name)
    if len(listed) != count:
        raise fields.wrong(name, f"must have {count} numbers, got {len(listed)}")
    return [ModelFields(fields.source, {name: each}).number(name) for each in listed]


def _read_nemotron_h(fields: ModelFields) -> ModelConfig:
    _silu_only(fields, "mamba_hidden_act")
    if fields.text("mlp_hidden_act", "relu2") != "relu2":
        raise fields.wrong("mlp_hidden_act", f"must be relu2, got {fields.text('mlp_hidden_act')!r:.80}")
    eps = fields.number("layer_norm_epsilon", 1e-5, high=1.0)
    kinds = _kinds(fields, ("attention", "ssm", "mlp"), "layers_block_type", "layer_types", "hybrid_override_pattern")
    inner = fields.integer("intermediate_size", 21_504)
    config = _config(
        fields, "nemotron_h", [(kind,) for kind in kinds], inner=inner, norm_eps=eps, context=4096, tied=False
    )
    config = _with_attention(config, fields, kv_heads=8, head_dim=128, rotates=False)
    groups = fields.integer("mamba_n_groups", fields.integer("n_groups", 8))
    bias = fields.flag("use_bias", False)
    low, high = _step_limits(fields, "mamba_dt_limit" if fields.has("mamba_dt_limit") else "time_step_limit")
    ssm = StateSpace(
        num_heads=fields.integer("mamba_num_heads", 128),
        head_dim=fields.integer("mamba_head_dim", 64),
        state_size=fields.integer("ssm_state_size", 128),
        num_groups=groups,
        width=fields.integer("mamba_d_conv", fields.integer("conv_kernel", 4), low=2, high=MAX_WIDTH),
        conv_bias=fields.flag("mamba_conv_bias", fields.flag("use_conv_bias", True)),
        in_bias=bias,
        out_bias=bias,
        norm_groups=groups,
        norm_eps=eps,
        least_step=low,
        most_step=high,
    )
    return replace(
        config,
        ssm=ssm,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=fields.flag("mlp_bias", False),
        activation="relu2",
        gated_mlp=False,
    )


def _read_granite(fields: ModelFields) -> ModelConfig:
    _silu_only(fields)
    if fields.integer("num_local_experts", 8, low=0):
        raise fields.wrong("num_local_experts", "must be 0: mixtures of experts are not supported")
    eps = fields.number("rms_norm_eps", 1e-6, high=1.0)
    names = ("layer_types", "layers_block_type")
    kinds: list[LayerPart]
    if any(map(fields.has, names)):
        kinds = _kinds(fields, ("attention", "ssm"), *names)
    else:
        kinds = ["ssm"] * _layer_count(fields)
    config = _config(
        fields,
        "granitemoehybrid",
        _each_with_mlp(kinds),
        inner=fields.integer("shared_intermediate_size", 1024),
        norm_eps=eps,
        context=2048,
        tied=False,
    )
    config = _with_attention(config, fields, rotates=fields.values.get("position_embedding_type") == "rope")
    return replace(
        config,
        ssm=_mamba(fields, config.hidden_size, norm_eps=eps),
        embed_scale=fields.number("embedding_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0),
    )


def _granite_scales(fields: ModelFields, config: ModelConfig) -> Scales:
    residual = fields.number("residual_multiplier", 1.0)
    query = fields.number("attention_multiplier", 1.0) * sqrt(config.head_dim)  # attention divides by this root
    added = ("o", "out", "down", "o_bias", "out_bias", "down_bias")
    return {**dict.fromkeys(added, residual), "q": query, "q_bias": query}


def _read_zamba2(fields: ModelFields) -> ModelConfig:
    act = fields.text("hidden_act", "gelu")
    if act not in ("gelu", "silu"):
        raise fields.wrong("hidden_act", f"must be gelu or silu, got {act!r:.80}")
    if fields.flag("use_long_context", False):
        raise fields.wrong("use_long_context", "must be false: a rescaled rope is not supported")
    eps = fields.number("rms_norm_eps", 1e-5, high=1.0)
    kinds = _kinds(fields, ("ssm", "shared"), "layers_block_type", "layer_types")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if 2 * hidden % heads:
        raise fields.wrong("hidden_size", f"must be a multiple of half of num_attention_heads ({heads})")
    inner = fields.integer("intermediate_size", 4 * hidden)
    parts: list[tuple[LayerPart, ...]] = [("shared", "ssm") if kind == "shared" else (kind,) for kind in kinds]
    config = _config(fields, "zamba2", parts, inner=inner, norm_eps=eps, context=4096, tied=True)
    rotates = fields.flag("use_mem_rope", False)
    config = _with_attention(config, fields, head_dim=2 * hidden // heads, has_own_size=False, rotates=rotates)
    groups = fields.integer("mamba_ngroups", 1)
    num_heads = fields.integer("n_mamba_heads", 8)
    bias = fields.flag("add_bias_linear", False)
    ssm = StateSpace(
        num_heads=num_heads,
        head_dim=fields.integer("mamba_expand", 2) * hidden // num_heads,
        state_size=fields.integer("mamba_d_state", 64),
        num_groups=groups,
        width=fields.integer("mamba_d_conv", 4, low=2, high=MAX_WIDTH),
        in_bias=bias,
        out_bias=bias,
        norm_groups=groups,
    )
    activation: Activation = "gelu" if act == "gelu" else "silu"
    return replace(config, ssm=ssm, qkv_bias=False, output_bias=False, mlp_bias=bias, activation=activation)


def _read_lfm2(fields: ModelFields) -> ModelConfig:
    eps = fields.number("norm_eps", 1e-5, high=1.0)
    layers = _layer_count(fields)
    kinds: list[LayerPart]
    if fields.has("layer_types"):
        kinds = _kinds(fields, ("attention", "conv"), "layer_types")
    else:
        indices = fields.listed("full_attn_idxs") if fields.has("full_attn_idxs") else list(range(layers))
        kinds = ["attention" if i in indices else "conv" for i in range(layers)]
    inner = fields.integer("block_ff_dim", fields.integer("intermediate_size", 12_288))
    if fields.flag("block_auto_adjust_ff_dim", True):
        multiple = fields.integer("block_multiple_of", 256)
        inner = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        inner = multiple * -(-inner // multiple)
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    config = _config(fields, "lfm2", _each_with_mlp(kinds), inner=inner, norm_eps=eps, context=128_000, tied=tied)
    config = _with_attention(config, fields, kv_heads=8, theta=1_000_000.0)
    width = fields.integer("conv_L_cache", 3, low=2, high=MAX_WIDTH)
    conv = ShortConv(width, fields.flag("conv_bias", False))
    return replace(config, conv=conv, qkv_bias=False, output_bias=False, qk_norm=True, tied_head=tied)


HYBRID_FAMILIES: Mapping[str, HybridFamily] = {
    "mamba2": HybridFamily("Mamba2ForCausalLM", _read_mamba2),
    "bamba": HybridFamily("BambaForCausalLM", _read_bamba),
    "falcon_h1": HybridFamily("FalconH1ForCausalLM", _read_falcon_h1, _falcon_h1_scales),
    "nemotron_h": HybridFamily("NemotronHForCausalLM", _read_nemotron_h),
    "granitemoehybrid": HybridFamily("GraniteMoeHybridForCausalLM", _read_granite, _granite_scales),
    "zamba2": HybridFamily("Zamba2ForCausalLM", _read_zamba2, lambda _fields, _config: {"q": sqrt(2)}),
    "lfm2": HybridFamily("Lfm2ForCausalLM", _read_lfm2),
}


class SharedBlocks(NamedTuple):
    """The blocks that Zamba 2's layers take turns to use."""

    num_blocks: int
    low_rank: tuple[str, ...]  # the matrices that have a low-rank term for each use


def shared_blocks(fields: ModelFields) -> SharedBlocks:
    has_attention = fields.flag("use_shared_attention_adapter", False)
    return SharedBlocks(
        fields.integer("num_mem_blocks", 1), ("q", "k", "v", "gate_up") if has_attention else ("gate_up",)
    )


def read_hybrid_config(fields: ModelFields) -> ModelConfig:
    """Read the configuration, without the sizes of parts that no layer has, and check it."""
    config = HYBRID_FAMILIES[fields.text("model_type")].read(fields)
    parts = {part for layer in config.parts for part in layer}
    if "ssm" not in parts:
        config = replace(config, ssm=None)
    if "conv" not in parts:
        config = replace(config, conv=None)
    if not {"attention", "shared"} & parts:
        config = replace(config, num_heads=0, num_kv_heads=0, head_dim=0, rotary_dim=0, rope=Rope())
    if not {"mlp", "shared"} & parts:
        config = replace(config, intermediate_size=0)
    if config.ssm is not None:
        _check_state_space(config.ssm, fields)
    return config


def _check_state_space(ssm: StateSpace, fields: ModelFields) -> None:
    if ssm.head_dim < 1:
        raise fields.wrong("the size of state space heads", f"is 0: {ssm.num_heads} heads are too many")
    if ssm.num_heads % ssm.num_groups:
        raise fields.wrong(
            "the number of state space heads", f"{ssm.num_heads} is no multiple of {ssm.num_groups} groups"
        )
    if ssm.inner_size % ssm.norm_groups:
        raise fields.wrong("the number of groups", f"{ssm.norm_groups} does not divide {ssm.inner_size} channels")
