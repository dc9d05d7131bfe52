"""Files and tensors of a Hugging Face directory."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specialist.models.checks import TensorNames
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.hub import INDEX, PICKLES, SINGLE, allowed_roots, model_name

MAX_JSON = 256 << 20


class ModelDirectory:
    """A model's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = model_name(path)
        self._roots = allowed_roots(path)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def file(self, name: str) -> Path:
        if not name or name in (".", "..") or "\0" in name or Path(name).name != name or "\\" in name:
            raise ModelRefused(f"{self.name}: {name!r:.120} must be the plain name of a file in the model's directory")
        path = self.path / name
        if not path.exists():
            raise ModelRefused(f"{self.name}: {name} is missing: fetch the whole directory again")
        if not any(path.resolve().is_relative_to(home) for home in self._roots):
            raise ModelRefused(f"{self.name}: {name} is a link that leaves the model's directory: copy the file")
        if not path.is_file():
            raise ModelRefused(f"{self.name}: {name} must be a regular file")
        return path

    def json(self, name: str) -> ModelFields:
        path = self.file(name)
        if path.stat().st_size > MAX_JSON:
            raise ModelRefused(f"{self.name}: {name} has more than {MAX_JSON:,} bytes")
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ModelRefused(f"{self.name}: {name} is not valid JSON ({error}): fetch it again") from None
        if not isinstance(content, dict):
            raise ModelRefused(f"{self.name}: {name} must contain a JSON object")
        return ModelFields(f"{self.name}/{name}", content)

    def optional_json(self, name: str) -> ModelFields:
        return self.json(name) if self.has(name) else ModelFields(f"{self.name}/{name}", {})

    def shards(self) -> list[str]:
        if self.has(SINGLE):
            return [SINGLE]
        if self.has(INDEX):
            return sorted(set(self.weight_map().values()))
        names = sorted(path.name for path in self.path.glob("*.safetensors"))
        if names:
            return names
        pickles = sorted(path.name for path in self.path.iterdir() if path.suffix in PICKLES)
        if pickles:
            raise ModelRefused(
                f"{self.name}: {pickles[0]} is a pickle, which can run code when it is read: convert it to safetensors"
            )
        raise ModelRefused(f"{self.name}: no *.safetensors file: give a directory with the model's weights")

    def weight_map(self) -> dict[str, str]:
        table = self.json(INDEX).table("weight_map")
        if not table.values:
            raise table.wrong("weight_map", "is empty: fetch the index again")
        return {name: table.text(name) for name in table.values}


NAMES = TensorNames(
    "Llama, Mistral or Qwen",
    top={"model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head"},
    layer={
        **{"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"},
        **{f"self_attn.{name}_proj": name for name in "qkvo"},
        **{f"self_attn.{name}_norm": f"{name}_norm" for name in "qk"},
        **{f"mlp.{name}_proj": name for name in ("gate", "up", "down")},
    },
    pattern=re.compile(r"model\.layers\.(0|[1-9][0-9]{0,6})\.([a-z_.]+)\.(weight|bias)"),
)
Renamed = Callable[[str, str], str]  # (name in the file, the model's name for errors) -> Octet's name
# Old checkpoints store these tensors although they follow from the config.
DERIVED = re.compile(r"model\.layers\.[0-9]+\.self_attn\.rotary_emb\.inv_freq")
DTYPES = ("F32", "F16", "BF16")


class StoredTensor(Protocol):
    """A weight that is read on access."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read(self) -> Tensor: ...

    def parts(self) -> tuple[Tensor, ...]:
        """Return the tensors in the files that the weight is made of."""


class ShardTensor(NamedTuple):
    file: Any  # a mapped safetensors file: processes that read the same file share its pages
    shard: str
    name: str  # the tensor's name in the file
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        tensor: Tensor = self.file.get_tensor(self.name)
        return tensor

    def parts(self) -> tuple[Tensor]:
        return (self.read(),)


def read_index(directory: ModelDirectory, rename: Renamed = NAMES.rename) -> dict[str, ShardTensor]:
    """Return every tensor of every shard by Octet's name. No weights are read yet."""
    tensors: dict[str, ShardTensor] = {}
    for shard in directory.shards():
        for stored in _list_tensors(directory, shard):
            name = rename(stored.name, directory.name)
            if name in tensors:
                raise ModelRefused(f"{directory.name}: {stored.name} is in {tensors[name].shard} and in {shard}")
            tensors[name] = stored
    if directory.has(INDEX) and not directory.has(SINGLE):
        _check_index(directory, {stored.name: stored.shard for stored in tensors.values()})
    return tensors


def without_tied_head(tensors: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors without the output head. Raises ModelRefused if the head differs from the embedding."""
    head, embed = tensors.get("head"), tensors.get("embed")
    if head and embed and not (head.shape == embed.shape and torch.equal(head.read(), embed.read())):
        raise ModelRefused(
            f"{source}: lm_head.weight differs from the embedding though tie_word_embeddings is true: "
            "set it to false in config.json, or fetch the model again"
        )
    return {name: stored for name, stored in tensors.items() if name != "head"}


def _check_index(directory: ModelDirectory, found: dict[str, str]) -> None:
    promised = {name: shard for name, shard in directory.weight_map().items() if not DERIVED.fullmatch(name)}
    for name in sorted(promised.keys() | found.keys()):
        if promised.get(name) != found.get(name):
            raise ModelRefused(
                f"{directory.name}: {name} is in {found.get(name, 'no file')}, but the index says "
                f"{promised.get(name, 'no file')}: fetch the index and the weights again"
            )


def _list_tensors(directory: ModelDirectory, shard: str) -> list[ShardTensor]:
    try:
        file: Any = safe_open(directory.file(shard), framework="pt")
    except SafetensorError as error:
        raise ModelRefused(f"{directory.name}: {shard} is damaged ({error}): fetch it again") from None
    tensors = []
    for name in file.keys():  # noqa: SIM118
        if DERIVED.fullmatch(name):
            continue
        part = file.get_slice(name)
        if part.get_dtype() not in DTYPES:
            kinds = ", ".join(DTYPES)
            raise ModelRefused(f"{directory.name}: {name} is stored as {part.get_dtype()}; only {kinds} are supported")
        tensors.append(ShardTensor(file, shard, name, tuple(part.get_shape())))
    return tensors
