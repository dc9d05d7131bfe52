"""The tensors of Hugging Face models with recurrent layers: their names, and the weights that are made of them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from specialist.models.checkpoint import ModelConfig
from specialist.models.checks import TensorNames
from specialist.models.fields import ModelRefused
from specialist.models.huggingface_files import Renamed, ShardTensor, StoredTensor
from specialist.models.hybrid_families import Scales, SharedBlocks

# A name that ends with a dot is not final: the layer's parts decide what it is.
_MIXER = {"in_proj": "in", "out_proj": "out", "conv1d": "conv", "norm": "gate_norm"}
_MIXER |= {"dt_bias": "step_bias", "A_log": "log_decay", "D": "skip"}
_ATTENTION = {f"self_attn.{name}_proj": name for name in "qkvo"}
_GATED = {f"feed_forward.{name}_proj": name for name in ("gate", "up", "down")}
_MAMBA = {f"mamba.{name}": ours for name, ours in _MIXER.items()}
_TOP = {"model.embed_tokens.weight": "embed", "lm_head.weight": "head"}
_BLOCK = "shared_transformer."
_LAYER = r"(?:model|backbone)\.layers\.(0|[1-9][0-9]{0,6})\.([A-Za-z0-9_.]+?)(?:\.(weight|bias))?"


def _names(families: str, top: Mapping[str, str], layer: Mapping[str, str]) -> TensorNames:
    return TensorNames(families, top, layer, re.compile(_LAYER))


def _zamba2_layer() -> dict[str, str]:
    block = {
        **{f"self_attn.{name}_proj": name for name in "qkvo"},
        **{"feed_forward.gate_up_proj": "gate_up", "feed_forward.down_proj": "down"},
        **{"input_layernorm": "attn_norm", "pre_ff_layernorm": "mlp_norm"},
    }
    hybrid = {f"mamba_decoder.{name}": ours for name, ours in _MAMBA.items()}
    return {
        **_MAMBA,
        **hybrid,
        **{"input_layernorm": "mixer_norm", "mamba_decoder.input_layernorm": "mixer_norm", "linear": "link"},
        **{_BLOCK + name: f"block.{ours}" for name, ours in block.items()},
    }


class _Zamba2Names(NamedTuple):
    """Names of Zamba 2: the low-rank terms of the shared blocks are numbered, too."""

    plain: TensorNames

    def rename(self, name: str, source: str) -> str:
        found = re.fullmatch(
            r"model\.layers\.([0-9]{1,7})\.shared_transformer\.(?:self_attn\.linear_([qkv])_adapter_list|"
            r"feed_forward\.(gate_up)_proj_adapter_list)\.([0-9]{1,5})\.([01])\.weight",
            name,
        )
        if found is None:
            return self.plain.rename(name, source)
        return f"layers.{found[1]}.block.{found[2] or found[3]}_adapter.{found[4]}.{found[5]}"


_FINAL = {"model.final_layernorm.weight": "norm"}
_BACKBONE = {
    **{f"{root}.embeddings.weight": "embed" for root in ("model", "backbone")},
    **{f"{root}.norm_f.weight": "norm" for root in ("model", "backbone")},
    **{"backbone.embedding.weight": "embed", "lm_head.weight": "head"},
}
_BAMBA = {"input_layernorm": "first_norm", "pre_ff_layernorm": "mlp_norm", **_MAMBA, **_ATTENTION, **_GATED}
_NAMES: Mapping[str, TensorNames | _Zamba2Names] = {
    "mamba2": _names("Mamba 2", _BACKBONE, {f"mixer.{a}": b for a, b in _MIXER.items()} | {"norm": "mixer_norm"}),
    "bamba": _names("Bamba", {**_TOP, **_FINAL}, _BAMBA),
    "falcon_h1": _names("Falcon-H1", {**_TOP, **_FINAL}, _BAMBA),
    "nemotron_h": _names(
        "Nemotron-H",
        _BACKBONE,
        {
            **{f"mixer.{a}": b for a, b in _MIXER.items()},
            **{f"mixer.{name}_proj": name for name in ("q", "k", "v", "o", "up", "down")},
            "norm": "first_norm",
        },
    ),
    "granitemoehybrid": _names(
        "Granite hybrid",
        {**_TOP, "model.norm.weight": "norm"},
        {
            **{"input_layernorm": "first_norm", "post_attention_layernorm": "mlp_norm", **_MAMBA, **_ATTENTION},
            **{"shared_mlp.input_linear": "gate_up", "shared_mlp.output_linear": "down"},
        },
    ),
    "zamba2": _Zamba2Names(_names("Zamba 2", {**_TOP, **_FINAL}, _zamba2_layer())),
    "lfm2": _names(
        "LFM2",
        {**_TOP, "model.embedding_norm.weight": "norm"},
        {
            **{"operator_norm": "first_norm", "ffn_norm": "mlp_norm"},
            **{f"self_attn.{name}_proj": name for name in "qkv"},
            **{"self_attn.out_proj": "o", "self_attn.q_layernorm": "q_norm", "self_attn.k_layernorm": "k_norm"},
            **{"conv.in_proj": "in", "conv.out_proj": "out", "conv.conv": "conv"},
            **{"feed_forward.w1": "gate", "feed_forward.w3": "up", "feed_forward.w2": "down"},
        },
    ),
}


def hybrid_names(model_type: str) -> Renamed | None:
    names = _NAMES.get(model_type)
    return None if names is None else names.rename


@dataclass(frozen=True, slots=True, eq=False)
class MadeTensor:
    """A weight made of tensors in the files, whenever it is read."""

    shape: tuple[int, ...]
    sources: tuple[StoredTensor, ...]
    make: Callable[[], Tensor]

    def read(self) -> Tensor:
        return self.make()

    def parts(self) -> tuple[Tensor, ...]:
        return tuple(part for source in self.sources for part in source.parts())


def assemble_hybrid(
    config: ModelConfig, tensors: Mapping[str, ShardTensor], scales: Scales, shared: SharedBlocks, source: str
) -> dict[str, StoredTensor]:
    """Return the weights by their final names: fused matrices split, shared blocks given to each layer that uses them,
    convolutions without their middle dimension, factors folded in."""
    stored: dict[str, StoredTensor] = dict(tensors)
    if config.architecture == "zamba2":
        stored = _spread_blocks(config, stored, shared, source)
    found: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        prefix, _, part = name.rpartition(".")
        if part == "first_norm":
            found[f"{prefix}.{_first_norm(config, int(prefix.split('.')[1]))}"] = tensor
        elif part in ("gate_up", "gate_up_bias"):
            half = tensor.shape[0] // 2
            suffix = part.removeprefix("gate_up")
            found[f"{prefix}.gate{suffix}"] = _rows(tensor, slice(0, half))
            found[f"{prefix}.up{suffix}"] = _rows(tensor, slice(half, tensor.shape[0]))
        elif part == "conv" and len(tensor.shape) == 3 and tensor.shape[1] == 1:
            found[name] = _flat(tensor)
        else:
            found[name] = tensor
    return {name: _scaled(tensor, scales.get(name.rpartition(".")[2], 1.0)) for name, tensor in found.items()}


def _first_norm(config: ModelConfig, layer: int) -> str:
    parts = config.parts_of(layer) if layer < config.num_layers else ()
    return "attn_norm" if "attention" in parts else "mlp_norm" if parts == ("mlp",) else "mixer_norm"


def _rows(tensor: StoredTensor, rows: slice) -> MadeTensor:
    def read() -> Tensor:
        return tensor.read()[rows].clone()  # so that the rest of the tensor is not kept

    return MadeTensor((rows.stop - rows.start, *tensor.shape[1:]), (tensor,), read)


def _flat(tensor: StoredTensor) -> MadeTensor:
    return MadeTensor((tensor.shape[0], tensor.shape[2]), (tensor,), lambda: tensor.read()[:, 0])


def _scaled(tensor: StoredTensor, scale: float | Tensor) -> StoredTensor:
    if isinstance(scale, Tensor):
        by_row = scale.view(-1, *(1,) * (len(tensor.shape) - 1))
        return MadeTensor(tensor.shape, (tensor,), lambda: tensor.read().float() * by_row)
    if scale == 1.0:
        return tensor
    return MadeTensor(tensor.shape, (tensor,), lambda: tensor.read().float() * scale)


def _spread_blocks(
    config: ModelConfig, tensors: Mapping[str, StoredTensor], shared: SharedBlocks, source: str
) -> dict[str, StoredTensor]:
    """Give every layer with a shared block that block's weights. The blocks take turns; the files have the weights of
    each block at the first layer that uses it, with the low-rank terms of all its layers."""
    users = [layer for layer in range(config.num_layers) if "shared" in config.parts_of(layer)]
    blocks: dict[int, dict[str, StoredTensor]] = {layer: {} for layer in users}
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        number, is_block, part = name.removeprefix("layers.").partition(".block.")
        if not is_block:
            found[name] = tensor
        elif int(number) in blocks:
            blocks[int(number)][part] = tensor
        else:
            raise ModelRefused(f"{source}: layer {number} has a shared block, but the config says it has none")
    for turn, layer in enumerate(users):
        block = blocks[users[turn % shared.num_blocks]]
        terms = {
            f"{part}_adapter.{other}.{half}"
            for part in shared.low_rank
            for other in range(turn % shared.num_blocks, len(users), shared.num_blocks)
            for half in (0, 1)
        }
        found |= {f"layers.{layer}.{part}": tensor for part, tensor in block.items() if part not in terms}
        for part in shared.low_rank:
            if part in block:
                a, b = (block.get(f"{part}_adapter.{turn}.{half}") for half in (0, 1))
                what = f"the low-rank term {turn} of {part}"
                found[f"layers.{layer}.{part}"] = _with_low_rank(block[part], what, a, b, source)
    return found


def _with_low_rank(
    tensor: StoredTensor, what: str, a: StoredTensor | None, b: StoredTensor | None, source: str
) -> StoredTensor:
    if a is None or b is None:
        raise ModelRefused(f"{source}: {what} is missing: the download or conversion is incomplete; repeat it")
    if (b.shape[0], a.shape[1], a.shape[0]) != (*tensor.shape, b.shape[1]):
        shapes = f"{list(b.shape)} x {list(a.shape)}"
        raise ModelRefused(f"{source}: {what}, {shapes}, does not fit {list(tensor.shape)}")
    return MadeTensor(tensor.shape, (tensor, a, b), lambda: tensor.read().float() + b.read().float() @ a.read().float())
