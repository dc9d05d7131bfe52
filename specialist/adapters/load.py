"""From a PEFT directory to a checked adapter."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from octet.identity import digest_of
from specialist.adapters.adapter import Adapter, LowRank
from specialist.adapters.errors import AdapterRefused
from specialist.adapters.files import TENSORS, read_config, read_tensors
from specialist.adapters.settings import MAX_RANK, Settings, parse_settings
from specialist.models.checkpoint import LAYER_MATRICES, expected_shapes
from specialist.models.config import ModelConfig

_MODULES = {name: f"{'self_attn' if name in 'qkvo' else 'mlp'}.{name}_proj" for name in LAYER_MATRICES}
_TENSOR = re.compile(
    r"base_model\.model\.(model\.layers\.(0|[1-9][0-9]{0,4})\.(?:self_attn\.([qkvo])|mlp\.(gate|up|down))_proj)"
    r"\.lora_([AB])\.weight"
)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_HEADER_BYTES = 1 << 20
"""More than the names and shapes of any adapter take."""

Shapes = Mapping[str, tuple[int, ...]]


def read_adapter(directory: Path, model: ModelConfig) -> Adapter:
    """Raises AdapterRefused when it is damaged, does not fit the model, or would compute something else than LoRA."""
    shapes = matrix_shapes(model)
    settings = parse_settings(read_config(directory))
    tensors = read_tensors(directory, _most_bytes(shapes))
    halves = _halves(tensors)
    _check_coverage(halves, settings, model)
    targets = {name: _low_rank(name, halves[name], settings, shapes[name]) for name in sorted(halves)}
    return Adapter(content_digest(targets), targets, max(low.a.shape[0] for low in targets.values()))


def content_digest(targets: Mapping[str, LowRank]) -> str:
    """Of all that decides what it computes: which matrices, how strongly, and the numbers."""
    parts: list[bytes] = []
    for name in sorted(targets):
        low = targets[name]
        parts += [name.encode(), low.scale.hex().encode(), str([*low.a.shape, *low.b.shape]).encode()]
        parts += [low.a.numpy().tobytes(), low.b.numpy().tobytes()]
    return digest_of(parts).hex()


def matrix_shapes(model: ModelConfig) -> Shapes:
    """[out, in] of every matrix that an adapter may change."""
    return {
        name: shape
        for name, shape in expected_shapes(model)
        if name.rpartition(".")[2] in LAYER_MATRICES and "." in name
    }


def _most_bytes(shapes: Shapes) -> int:
    return _HEADER_BYTES + sum(4 * MAX_RANK * sum(shape) for shape in shapes.values())


def _halves(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, tuple[str, Tensor]]]:
    """For each matrix of the model, A and B: the path of the module and the tensor."""
    halves: dict[str, dict[str, tuple[str, Tensor]]] = {}
    for tensor_name, tensor in tensors.items():
        found = _TENSOR.fullmatch(tensor_name)
        if found is None:
            raise AdapterRefused(
                TENSORS, f"{tensor_name!r:.120} is no lora_A or lora_B of {', '.join(_MODULES.values())} of a layer"
            )
        path, layer, attention, mlp, half = found.groups()
        halves.setdefault(f"layers.{int(layer)}.{attention or mlp}", {})[half] = (path, tensor)
    return halves


def _check_coverage(halves: Mapping[str, object], settings: Settings, model: ModelConfig) -> None:
    """What the settings say is changed is what there are tensors for, neither more nor less."""
    for layer in settings.layers or ():
        if not 0 <= layer < model.num_layers:
            raise AdapterRefused("layers_to_transform", f"layer {layer} is not one of the {model.num_layers} there are")
    paths = {
        f"layers.{layer}.{name}": f"model.layers.{layer}.{module}"
        for layer in range(model.num_layers)
        for name, module in _MODULES.items()
    }
    for target in settings.targets:
        if not any(path.endswith(f".{target}") or path == target for path in paths.values()):
            raise AdapterRefused("target_modules", f"{target!r:.80} is none of {', '.join(_MODULES.values())}")
    said = {
        name
        for name, path in paths.items()
        if settings.targets_module(path) and (settings.layers is None or int(name.split(".")[1]) in settings.layers)
    }
    for name in sorted(set(halves) - paths.keys()):
        raise AdapterRefused(TENSORS, f"{name} is beyond the model's {model.num_layers} layers")
    for name in sorted(said - set(halves)):
        raise AdapterRefused(TENSORS, f"has nothing for {name}, which target_modules names")
    for name in sorted(set(halves) - said):
        raise AdapterRefused(TENSORS, f"has tensors for {name}, which target_modules does not name")


def _low_rank(
    name: str, halves: Mapping[str, tuple[str, Tensor]], settings: Settings, shape: tuple[int, ...]
) -> LowRank:
    if len(halves) != 2:
        raise AdapterRefused(TENSORS, f"{name} has only its lora_{next(iter(halves))}")
    (path, a), (_, b) = halves["A"], halves["B"]
    rows, columns = shape
    rank = settings.rank_of(path)
    return LowRank(
        _checked(f"{name} lora_A", a, (rank, columns)),
        _checked(f"{name} lora_B", b, (rows, rank)),
        settings.scale_of(path),
    )


def _checked(name: str, tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    """float32"""
    if tensor.dtype not in _FLOATS:
        raise AdapterRefused(TENSORS, f"{name} must be float32, float16 or bfloat16, got {tensor.dtype}")
    if tuple(tensor.shape) != shape:
        raise AdapterRefused(TENSORS, f"{name} must be {list(shape)} for this model and rank, got {list(tensor.shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise AdapterRefused(TENSORS, f"{name} holds a number that is not finite")
    return tensor.float().contiguous()
