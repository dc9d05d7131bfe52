"""The weights of a model directory under Octet's names."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specialist.models.errors import ModelRefused
from specialist.models.hf.files import INDEX, SINGLE, Directory
from specialist.models.lazy import LazyWeights

TOP = {"model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head"}
OF_A_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
    **{f"self_attn.{name}_proj": name for name in "qkvo"},
    **{f"self_attn.{name}_norm": f"{name}_norm" for name in "qk"},
    **{f"mlp.{name}_proj": name for name in ("gate", "up", "down")},
}
LAYER_NAME = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,6})\.([a-z_.]+)\.(weight|bias)")
DERIVED = re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq")
"""Old checkpoints store what is computed from the config anyway."""
DTYPES = ("F32", "F16", "BF16")


class Shard(Protocol):
    """What is used of a `safetensors.safe_open`, which has no types of its own."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> "Slice": ...
    def get_tensor(self, name: str) -> Tensor: ...


class Slice(Protocol):
    def get_dtype(self) -> str: ...
    def get_shape(self) -> list[int]: ...


class Stored(NamedTuple):
    file: Shard
    """Mapped: pages are shared by all who read the same file."""
    shard: str
    name: str
    """In the file."""
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        return self.file.get_tensor(self.name)

    def parts(self) -> tuple[Tensor]:
        return (self.read(),)


def read_index(directory: Directory) -> dict[str, Stored]:
    """Every tensor of every shard by Octet's name, none of them read."""
    tensors: dict[str, Stored] = {}
    for shard in directory.shards():
        for stored in _tensors_of(directory, shard):
            name = _name(stored.name, directory.name)
            if name in tensors:
                raise ModelRefused(f"{directory.name}: {stored.name} is in {tensors[name].shard} and in {shard}")
            tensors[name] = stored
    if directory.has(INDEX) and not directory.has(SINGLE):
        _check_index(directory, {stored.name: stored.shard for stored in tensors.values()})
    return tensors


def without_tied_head(tensors: Mapping[str, Stored], source: str) -> dict[str, Stored]:
    """A tied model may carry its head once more; it must be the embedding."""
    head = tensors.get("head")
    embed = tensors.get("embed")
    if head is not None and embed is not None and not _equal(head, embed):
        raise ModelRefused(
            f"{source}: lm_head.weight differs from the embedding though the config says tie_word_embeddings: "
            "set it to false in config.json, or fetch the model again"
        )
    return {name: stored for name, stored in tensors.items() if name != "head"}


def weights_of(tensors: Mapping[str, Stored]) -> LazyWeights:
    return LazyWeights({name: stored.read for name, stored in tensors.items()})


def _equal(one: Stored, other: Stored) -> bool:
    return one.shape == other.shape and torch.equal(one.read(), other.read())


def _check_index(directory: Directory, found: dict[str, str]) -> None:
    promised = {name: shard for name, shard in directory.weight_map().items() if not DERIVED.fullmatch(name)}
    for name in sorted(promised.keys() | found.keys()):
        if promised.get(name) != found.get(name):
            raise ModelRefused(
                f"{directory.name}: {name} is in {found.get(name, 'no file')}, but the index says "
                f"{promised.get(name, 'nothing of it')}: fetch the index and the weights again"
            )


def _tensors_of(directory: Directory, shard: str) -> list[Stored]:
    try:
        file: Shard = safe_open(directory.file(shard), framework="pt")
    except SafetensorError as error:
        raise ModelRefused(f"{directory.name}: {shard} is damaged ({error}): fetch it again") from None
    names = [name for name in file.keys() if not DERIVED.fullmatch(name)]  # noqa: SIM118
    return [Stored(file, shard, name, _shape(file, name, directory.name)) for name in names]


def _shape(file: Shard, name: str, source: str) -> tuple[int, ...]:
    part = file.get_slice(name)
    if part.get_dtype() not in DTYPES:
        raise ModelRefused(f"{source}: {name} is stored as {part.get_dtype()}; {', '.join(DTYPES)} are supported")
    return tuple(part.get_shape())


def _name(name: str, source: str) -> str:
    if name in TOP:
        return TOP[name]
    match = LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in OF_A_LAYER:
        raise ModelRefused(f"{source}: tensor {name!r:.120} is not of a Llama, Mistral or Qwen model")
    return f"layers.{match[1]}.{OF_A_LAYER[match[2]]}{'_bias' if match[3] == 'bias' else ''}"
