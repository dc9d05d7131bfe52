"""A LoRA adapter, read from a PEFT directory and checked: the configuration and the tensors."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from octet.identity import digest_parts
from specialist.adapters.catalog import AdapterRefused
from specialist.models.checkpoint import LAYER_MATRICES, ModelConfig, expected_shapes
from specialist.models.hub import ADAPTER_FILES, allowed_roots


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The low-rank term scale * b @ a, added to a matrix."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    digest: str  # sha256 of all content that affects the result, hex; independent of name and path
    targets: Mapping[str, LowRank]  # by the matrix's name in a checkpoint, such as `layers.3.q`
    rank: int  # the largest rank of any target

    @property
    def nbytes(self) -> int:
        return sum(low.a.nbytes + low.b.nbytes for low in self.targets.values())


MAX_RANK = 256
MAX_ALPHA = 1_000_000

_Number = TypeVar("_Number", int, float)

# Fields without effect at inference: training settings and names.
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
    rank_pattern: Mapping[str, int]  # ranks of modules whose path ends with the key; the first match applies
    alpha_pattern: Mapping[str, float]
    targets: tuple[str, ...]  # path suffixes of the modules that the adapter changes
    layers: frozenset[int] | None  # None for all

    def targets_module(self, path: str) -> bool:
        return any(_ends_with(path, target) for target in self.targets)

    def find_rank(self, path: str) -> int:
        return _first(self.rank_pattern, path, self.rank)

    def compute_scale(self, path: str) -> float:
        rank = self.find_rank(path)
        return _first(self.alpha_pattern, path, self.alpha) / (sqrt(rank) if self.rslora else rank)


def parse_adapter_config(fields: Mapping[str, object]) -> AdapterConfig:
    """Parse the fields of adapter_config.json. Raises AdapterRefused unless they describe plain LoRA, scale * b @ a."""
    if fields.get("peft_type") != "LORA":
        raise AdapterRefused("peft_type", f"only LORA is supported, got {fields.get('peft_type')!r:.40}")
    for name, value in fields.items():
        if value and name not in _HARMLESS | _READ:
            raise AdapterRefused(name, f"not supported, so it must be absent or empty, got {value!r:.40}")
    if fields.get("bias", "none") != "none":
        raise AdapterRefused("bias", f"only 'none' is supported, got {fields['bias']!r:.40}")
    init = fields.get("init_lora_weights", True)
    if not any(init is each or (isinstance(each, str) and init == each) for each in _LEAVES_BASE_ALONE):
        why = f"{init!r:.40} changes the base weights: convert the adapter to plain LoRA first"
        raise AdapterRefused("init_lora_weights", why)
    rslora = fields.get("use_rslora", False)
    _require(isinstance(rslora, bool), "use_rslora", "must be true or false", rslora)
    return AdapterConfig(
        rank=_rank("r", fields.get("r")),
        alpha=_alpha("lora_alpha", fields.get("lora_alpha")),
        rslora=bool(rslora),
        rank_pattern={key: _rank("rank_pattern", value) for key, value in _pattern("rank_pattern", fields)},
        alpha_pattern={key: _alpha("alpha_pattern", value) for key, value in _pattern("alpha_pattern", fields)},
        targets=_targets(fields.get("target_modules")),
        layers=_layers(fields.get("layers_to_transform")),
    )


def _first(pattern: Mapping[str, _Number], path: str, otherwise: _Number) -> _Number:
    return next((value for end, value in pattern.items() if _ends_with(path, end)), otherwise)


def _ends_with(path: str, end: str) -> bool:
    return path == end or path.endswith(f".{end}")


def _rank(field: str, value: Any) -> int:
    is_valid = type(value) is int and 1 <= value <= MAX_RANK
    _require(is_valid, field, f"a rank must be an integer from 1 to {MAX_RANK}", value)
    return int(value)


def _alpha(field: str, value: Any) -> float:
    is_valid = type(value) in (int, float) and 0 < value <= MAX_ALPHA
    _require(is_valid, field, f"an alpha must be a number above 0 and at most {MAX_ALPHA:,}", value)
    return float(value)


def _require(is_valid: bool, field: str, expected: str, value: object) -> None:
    if not is_valid:
        raise AdapterRefused(field, f"{expected}, got {value!r:.40}")


def _pattern(field: str, fields: Mapping[str, object]) -> list[tuple[str, object]]:
    value: Any = fields.get(field) or {}
    _require(isinstance(value, dict), field, "must be an object", value)
    for key in value:
        if not _PLAIN_PATH.fullmatch(key):
            raise AdapterRefused(field, f"keys must be plain module paths, not regular expressions, got {key!r:.40}")
    return list(value.items())


def _targets(value: Any) -> tuple[str, ...]:
    is_valid = isinstance(value, list) and bool(value) and all(isinstance(name, str) for name in value)
    _require(is_valid, "target_modules", "must be a non-empty list of module names", value)
    return tuple(value)


def _layers(value: object) -> frozenset[int] | None:
    if value is None:
        return None
    layers = value if isinstance(value, list) else [value]
    _require(all(type(layer) is int for layer in layers), "layers_to_transform", "must be layer numbers", value)
    return frozenset(layers)


CONFIG, TENSORS = ADAPTER_FILES
MAX_CONFIG_BYTES = 1 << 20


def read_adapter_config(directory: Path) -> dict[str, Any]:
    content = _read(directory, CONFIG, MAX_CONFIG_BYTES)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(CONFIG, f"not JSON: {error!s:.80}") from error
    if not isinstance(fields, dict):
        raise AdapterRefused(CONFIG, f"must contain a JSON object, got {type(fields).__name__}")
    return fields


def read_adapter_tensors(directory: Path, max_bytes: int) -> dict[str, Tensor]:
    if not (directory / TENSORS).exists() and (directory / "adapter_model.bin").exists():
        raise AdapterRefused("adapter_model.bin", f"pickle files are never opened: convert it to {TENSORS}")
    content = _read(directory, TENSORS, max_bytes)
    try:
        return load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise AdapterRefused(TENSORS, f"truncated or damaged: {error!s:.120}") from error


def _read(directory: Path, name: str, max_bytes: int) -> bytes:
    path = directory / name
    try:
        place = path.resolve(strict=True)
        if not any(place.is_relative_to(root) for root in allowed_roots(directory)):
            raise AdapterRefused(name, "a symbolic link that leaves its directory: copy the file instead")
        if not S_ISREG(place.stat().st_mode):
            raise AdapterRefused(name, "not a regular file")
        with place.open("rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, AdapterRefused):
            raise
        raise AdapterRefused(name, f"cannot be read: {error!s:.200}") from error
    if len(content) > max_bytes:
        raise AdapterRefused(name, f"larger than the limit of {max_bytes:,} bytes")
    return content


_MODULES = {name: f"{'self_attn' if name in 'qkvo' else 'mlp'}.{name}_proj" for name in LAYER_MATRICES}
_TENSOR = re.compile(
    r"base_model\.model\.(model\.layers\.(0|[1-9][0-9]{0,4})\.(?:self_attn\.([qkvo])|mlp\.(gate|up|down))_proj)"
    r"\.lora_([AB])\.weight"
)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_HEADER_BYTES = 1 << 20  # more than the names and shapes of any adapter need

Shapes = Mapping[str, tuple[int, ...]]


def read_adapter(directory: Path, model: ModelConfig) -> Adapter:
    """Read an adapter. Raises AdapterRefused if it is damaged, does not fit the model, or is not plain LoRA."""
    if model.parts:
        raise AdapterRefused(TENSORS, f"adapters of {model.architecture} models are not supported")
    shapes = matrix_shapes(model)
    settings = parse_adapter_config(read_adapter_config(directory))
    most_bytes = _HEADER_BYTES + sum(4 * MAX_RANK * sum(shape) for shape in shapes.values())
    halves = _halves(read_adapter_tensors(directory, most_bytes))
    _check_coverage(halves, settings, model)
    targets = {name: _low_rank(name, halves[name], settings, shapes[name]) for name in sorted(halves)}
    return Adapter(content_digest(targets), targets, max(low.a.shape[0] for low in targets.values()))


def content_digest(targets: Mapping[str, LowRank]) -> str:
    """Return a digest of all content that affects the result: matrices, scales and layer numbers."""
    parts: list[bytes] = []
    for name in sorted(targets):
        low = targets[name]
        parts += [name.encode(), low.scale.hex().encode(), str([*low.a.shape, *low.b.shape]).encode()]
        parts += [low.a.numpy().tobytes(), low.b.numpy().tobytes()]
    return digest_parts(parts).hex()


def matrix_shapes(model: ModelConfig) -> Shapes:
    """Return the shape [out, in] of every matrix that an adapter may change."""
    shapes = dict(expected_shapes(model))
    return {name: shapes[name] for name in shapes if "." in name and name.rpartition(".")[2] in LAYER_MATRICES}


def _halves(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, tuple[str, Tensor]]]:
    halves: dict[str, dict[str, tuple[str, Tensor]]] = {}
    for tensor_name, tensor in tensors.items():
        found = _TENSOR.fullmatch(tensor_name)
        if found is None:
            why = f"is not a lora_A or lora_B weight of a supported module ({', '.join(_MODULES.values())})"
            raise AdapterRefused(TENSORS, f"{tensor_name!r:.120} {why}")
        path, layer, attention, mlp, half = found.groups()
        halves.setdefault(f"layers.{int(layer)}.{attention or mlp}", {})[half] = (path, tensor)
    return halves


def _check_coverage(halves: Mapping[str, object], settings: AdapterConfig, model: ModelConfig) -> None:
    for layer in settings.layers or ():
        if not 0 <= layer < model.num_layers:
            why = f"layer {layer} is not one of the model's {model.num_layers} layers"
            raise AdapterRefused("layers_to_transform", why)
    paths = {
        f"layers.{layer}.{name}": f"model.layers.{layer}.{module}"
        for layer in range(model.num_layers)
        for name, module in _MODULES.items()
    }
    for target in settings.targets:
        if not any(path.endswith(f".{target}") or path == target for path in paths.values()):
            raise AdapterRefused("target_modules", f"{target!r:.80} is not one of {', '.join(_MODULES.values())}")
    named = {
        name
        for name, path in paths.items()
        if settings.targets_module(path) and (settings.layers is None or int(name.split(".")[1]) in settings.layers)
    }
    for name in sorted(set(halves) - paths.keys()):
        raise AdapterRefused(TENSORS, f"{name} is beyond the model's {model.num_layers} layers")
    for name in sorted(named - set(halves)):
        raise AdapterRefused(TENSORS, f"no tensors for {name}, which target_modules names")
    for name in sorted(set(halves) - named):
        raise AdapterRefused(TENSORS, f"unexpected tensors for {name}, which target_modules does not name")


def _low_rank(
    name: str, halves: Mapping[str, tuple[str, Tensor]], settings: AdapterConfig, shape: tuple[int, ...]
) -> LowRank:
    if len(halves) != 2:
        raise AdapterRefused(TENSORS, f"{name} must have lora_A and lora_B, but has only lora_{next(iter(halves))}")
    (path, a), (_, b) = halves["A"], halves["B"]
    rows, columns = shape
    rank = settings.find_rank(path)
    a, b = _checked(f"{name} lora_A", a, (rank, columns)), _checked(f"{name} lora_B", b, (rows, rank))
    return LowRank(a, b, settings.compute_scale(path))


def _checked(name: str, tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    if tensor.dtype not in _FLOATS:
        raise AdapterRefused(TENSORS, f"{name} must be float32, float16 or bfloat16, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise AdapterRefused(TENSORS, f"the shape of {name} must be {list(shape)}, got {list(tensor.shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise AdapterRefused(TENSORS, f"{name} contains a value that is not finite")
    return tensor.float().contiguous()
