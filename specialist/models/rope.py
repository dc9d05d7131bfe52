"""The rotary positions that a Hugging Face configuration describes."""

from typing import get_args

from specialist.models.checkpoint import Rope, RopeKind
from specialist.models.checks import MAX_CONTEXT
from specialist.models.fields import ModelFields


def read_rope(config: ModelFields, context: int, *, theta: float = 10_000.0, is_partial: bool = False) -> Rope:
    """`theta` is the default. `is_partial`: the family rotates a known part of each head."""
    table = _table(config)
    nested = [name for name, value in table.values.items() if isinstance(value, dict)]
    if nested:
        raise table.wrong(nested[0], "applies to some layers only, which is not supported")
    kind = table.text("rope_type", table.text("type", "default"))
    theta = table.number("rope_theta", config.number("rope_theta", theta))
    if not is_partial and table.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise config.wrong("partial_rotary_factor", "must be 1: partial rotation of a head is not supported")
    if kind == "default":
        return Rope(theta)
    if kind in ("linear", "dynamic"):  # dynamic scales only beyond max_position_embeddings, where the context ends
        return Rope(theta, "linear" if kind == "linear" else "dynamic", _factor(table))
    if kind == "llama3":
        return _llama3(table, theta, _original_context(config, table, context))
    if kind == "yarn":
        return _yarn(table, theta, _original_context(config, table, context), context)
    raise table.wrong("rope_type", f"must be {' or '.join(get_args(RopeKind))}, got {kind!r:.80}")


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
