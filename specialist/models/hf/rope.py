"""Rotary positions as a config.json describes them: in `rope_parameters`, or in `rope_theta` and `rope_scaling`."""

from specialist.models.checks import MAX_CONTEXT
from specialist.models.config import Rope
from specialist.models.fields import Fields

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


def read_rope(config: Fields, context: int) -> Rope:
    table = _table(config)
    nested = [name for name, value in table.values.items() if isinstance(value, dict)]
    if nested:
        raise table.wrong(nested[0], "sets positions for some layers only, which is not supported")
    kind = table.text("rope_type", table.text("type", "default"))
    theta = table.number("rope_theta", config.number("rope_theta", 10_000.0))
    if table.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise config.wrong("partial_rotary_factor", "must be 1: rotating a part of a head is not supported")
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", _factor(table))
    if kind == "dynamic":
        # Scales only beyond max_position_embeddings, which is where this model's context ends.
        return Rope(theta, "dynamic", _factor(table))
    if kind == "llama3":
        return _llama3(table, theta, _original_context(config, table, context))
    if kind == "yarn":
        return _yarn(table, theta, _original_context(config, table, context), context)
    raise table.wrong("rope_type", f"must be one of {', '.join(KINDS)}, got {kind!r:.80}")


def _table(config: Fields) -> Fields:
    for name in ("rope_scaling", "rope_parameters"):
        if config.has(name) and config.values[name] != {}:
            return config.table(name)
    return Fields(config.source, {})


def _factor(table: Fields) -> float:
    return table.number("factor", high=1e6)


def _original_context(config: Fields, table: Fields, context: int) -> int:
    inside = table.integer("original_max_position_embeddings", context, high=MAX_CONTEXT)
    return config.integer("original_max_position_embeddings", inside, high=MAX_CONTEXT)


def _llama3(table: Fields, theta: float, original_context: int) -> Rope:
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if low >= high:
        raise table.wrong("high_freq_factor", f"must be above low_freq_factor ({low:g}), got {high:g}")
    return Rope(theta, "llama3", _factor(table), original_context, low_freq_factor=low, high_freq_factor=high)


def _yarn(table: Fields, theta: float, original_context: int, context: int) -> Rope:
    if theta == 1.0:
        raise table.wrong("rope_theta", "must not be 1")
    return Rope(
        theta,
        "yarn",
        _factor(table) if table.has("factor") else context / original_context,
        original_context,
        beta_fast=table.number("beta_fast", 32.0),
        beta_slow=table.number("beta_slow", 1.0),
        attention_factor=table.maybe_number("attention_factor"),
        mscale=table.maybe_number("mscale"),
        mscale_all_dim=table.maybe_number("mscale_all_dim"),
        truncate=table.flag("truncate", True),
    )
