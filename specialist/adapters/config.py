"""The checked fields of `adapter_config.json` that determine the result of an adapter."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

from specialist.adapters.catalog import AdapterRefused

MAX_RANK = 256
MAX_ALPHA = 1_000_000

_Number = TypeVar("_Number", int, float)

# Without effect at inference: training settings and names.
_HARMLESS = frozenset(
    {"task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"}
    | {"lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core"}
    | {"qalora_group_size", "layers_pattern", "ensure_weight_tying"}
)
_READ = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"}
    | {"layers_to_transform", "bias", "init_lora_weights"}
)
# Initialisations that leave the base weights unchanged; all others change them.
_LEAVES_BASE_ALONE = (True, False, None, "gaussian", "eva", "orthogonal")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    rank: int
    alpha: float
    rslora: bool  # divide alpha by the square root of the rank instead of the rank
    rank_pattern: Mapping[str, int]  # ranks of modules whose path ends with the key; the first match counts
    alpha_pattern: Mapping[str, float]
    targets: tuple[str, ...]  # path suffixes of the modules that the adapter changes
    layers: frozenset[int] | None  # None for all

    def targets_module(self, path: str) -> bool:
        return any(_ends_with(path, target) for target in self.targets)

    def rank_of(self, path: str) -> int:
        return _first(self.rank_pattern, path, self.rank)

    def scale_of(self, path: str) -> float:
        rank = self.rank_of(path)
        return _first(self.alpha_pattern, path, self.alpha) / (sqrt(rank) if self.rslora else rank)


def parse_adapter_config(fields: Mapping[str, object]) -> AdapterConfig:
    """Check the fields. Raises AdapterRefused unless the adapter is plain LoRA, scale * b @ a."""
    if fields.get("peft_type") != "LORA":
        raise AdapterRefused("peft_type", f"only LORA is supported, got {fields.get('peft_type')!r:.40}")
    for name, value in fields.items():
        if value and name not in _HARMLESS | _READ:
            raise AdapterRefused(name, f"not supported: must be absent or empty, got {value!r:.40}")
    if fields.get("bias", "none") != "none":
        raise AdapterRefused("bias", f"only 'none' is supported, got {fields['bias']!r:.40}")
    init = fields.get("init_lora_weights", True)
    if not any(init is each or (isinstance(each, str) and init == each) for each in _LEAVES_BASE_ALONE):
        why = f"{init!r:.40} changes the base weights: convert the adapter to plain LoRA first"
        raise AdapterRefused("init_lora_weights", why)
    return AdapterConfig(
        rank=_rank("r", fields.get("r")),
        alpha=_alpha("lora_alpha", fields.get("lora_alpha")),
        rslora=_flag("use_rslora", fields.get("use_rslora", False)),
        rank_pattern={key: _rank("rank_pattern", value) for key, value in _pattern("rank_pattern", fields)},
        alpha_pattern={key: _alpha("alpha_pattern", value) for key, value in _pattern("alpha_pattern", fields)},
        targets=_targets(fields.get("target_modules")),
        layers=_layers(fields.get("layers_to_transform")),
    )


def _first(pattern: Mapping[str, _Number], path: str, otherwise: _Number) -> _Number:
    return next((value for end, value in pattern.items() if _ends_with(path, end)), otherwise)


def _ends_with(path: str, end: str) -> bool:
    return path == end or path.endswith(f".{end}")


def _rank(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        raise AdapterRefused(field, f"must be an integer from 1 to {MAX_RANK}, got {value!r:.40}")
    return value


def _alpha(field: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_ALPHA:
        raise AdapterRefused(field, f"must be a number above 0 and at most {MAX_ALPHA:,}, got {value!r:.40}")
    return float(value)


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise AdapterRefused(field, f"must be true or false, got {value!r:.40}")
    return value


def _pattern(field: str, fields: Mapping[str, object]) -> list[tuple[str, object]]:
    value = fields.get(field) or {}
    if not isinstance(value, dict):
        raise AdapterRefused(field, f"must be an object, got {value!r:.40}")
    for key in value:
        if not _PLAIN_PATH.fullmatch(key):
            raise AdapterRefused(field, f"keys must be plain module paths, not expressions, got {key!r:.40}")
    return list(value.items())


def _targets(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise AdapterRefused("target_modules", f"must be a list of module names, got {value!r:.40}")
    return tuple(value)


def _layers(value: object) -> frozenset[int] | None:
    if value is None:
        return None
    layers = value if isinstance(value, list) else [value]
    if not all(isinstance(layer, int) and not isinstance(layer, bool) for layer in layers):
        raise AdapterRefused("layers_to_transform", f"must be layer numbers, got {value!r:.40}")
    return frozenset(layers)
