"""A GGUF file's tensors under Octet's names, in Octet's layout."""

import re
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from specialist.models.config import ModelConfig
from specialist.models.errors import ModelRefused
from specialist.models.gguf.blocks import PLAIN, read_weight
from specialist.models.gguf.reader import Stored
from specialist.models.lazy import LazyWeights
from specialist.models.weight import Affine, Weight

TOP = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
OF_A_LAYER = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,6})\.([a-z_]+)\.(weight|bias)")
ROPE_FACTORS = "rope_freqs.weight"


def named(tensors: Mapping[str, Stored], source: str) -> dict[str, Stored]:
    """By Octet's name. A tensor that is of no use to these architectures is refused."""
    return {_name(name, source): stored for name, stored in tensors.items() if name != ROPE_FACTORS}


def _name(name: str, source: str) -> str:
    if name in TOP:
        return TOP[name]
    match = LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in OF_A_LAYER:
        raise ModelRefused(f"{source}: tensor {name!r:.120} is not of a Llama or Qwen2 model")
    return f"layers.{match[1]}.{OF_A_LAYER[match[2]]}{'_bias' if match[3] == 'bias' else ''}"


def check_kinds(tensors: Mapping[str, Stored], source: str) -> None:
    """Norms and biases are floats; only matrices come in blocks."""
    for name, stored in tensors.items():
        if len(stored.shape) != 2 and stored.kind.name not in PLAIN:
            raise ModelRefused(f"{source}: {name} is stored as {stored.kind.name}; only matrices may be quantised")


def weights_of(tensors: Mapping[str, Stored], config: ModelConfig) -> LazyWeights:
    return LazyWeights({name: partial(_read, name, stored, config) for name, stored in tensors.items()})


def _read(name: str, stored: Stored, config: ModelConfig) -> Weight:
    weight = read_weight(stored)
    part = name.rpartition(".")[2].removesuffix("_bias")
    if config.architecture != "llama" or part not in ("q", "k"):
        return weight
    return _take_rows(weight, halves_apart(stored.shape[0], config.head_dim))


def halves_apart(rows: int, head_dim: int) -> Tensor:
    """Llama in GGUF has the pairs that rope turns side by side in a head; here they stand half a head apart."""
    return torch.arange(rows).view(-1, head_dim // 2, 2).transpose(1, 2).flatten()


def _take_rows(weight: Weight, rows: Tensor) -> Weight:
    if isinstance(weight, Affine):
        return Affine(weight.bits, weight.q[rows], weight.scale[rows], weight.minimum[rows])
    return weight[rows]
