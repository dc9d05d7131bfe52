"""Checks that every model must pass, and the model's revision."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from octet.identity import digest_parts
from specialist.models.checkpoint import ModelConfig, Vocabulary, expected_shapes
from specialist.models.fields import ModelRefused
from specialist.models.progress import Progress

_PartT = TypeVar("_PartT")
MAX_CONTEXT = 1 << 24
MAX_LAYERS = 4096
SCANNED_AT_ONCE = 1 << 22  # elements; limits the memory of a scan


@dataclass(slots=True, eq=False)
class Inspection:
    """A model's parts, read without its weights, and why the missing ones were refused."""

    config: ModelConfig | None = None
    vocabulary: Vocabulary | None = None
    bits: Mapping[str, int] = field(default_factory=dict)  # of each quantised matrix
    problems: list[str] = field(default_factory=list)

    def attempt(self, read: Callable[[], _PartT]) -> _PartT | None:
        """Return what `read` returns. If it refuses the model, note the problem and return None."""
        try:
            return read()
        except ModelRefused as refused:
            if str(refused) not in self.problems:  # a field that several parts need is missing from each
                self.problems.append(str(refused))
            return None


class TensorNames(NamedTuple):
    """Maps a file format's tensor names to Octet's names."""

    families: str
    top: Mapping[str, str]
    layer: Mapping[str, str]
    pattern: re.Pattern[str]  # groups: layer, tensor, weight or bias

    def rename(self, name: str, source: str) -> str:
        if name in self.top:
            return self.top[name]
        match = self.pattern.fullmatch(name)
        if match is None or match[2] not in self.layer:
            raise ModelRefused(f"{source}: tensor {name!r:.120} does not belong to a {self.families} model")
        return f"layers.{match[1]}.{self.layer[match[2]]}{'_bias' if match[3] == 'bias' else ''}"


def check_draft_model(
    draft: tuple[ModelConfig, Vocabulary], model: tuple[ModelConfig, Vocabulary], source: str
) -> None:
    """Raises ModelRefused unless every token means the same in both models, none has more, and the draft model keeps
    nothing but keys and values."""
    if draft[0].is_recurrent:
        raise ModelRefused(f"{source}: a draft model has no recurrent layers, but this is {draft[0].architecture}")
    one, other = draft[0].vocab_size, model[0].vocab_size
    if one != other:
        raise ModelRefused(
            f"{source}: as a draft model it must have the vocabulary of the model, but it has {one:,} tokens and the "
            f"model {other:,}: choose a smaller model of the same family"
        )
    mine, theirs = ({**each.tokenizer.get_vocab(), **each.control_ids} for _, each in (draft, model))
    if mine != theirs:
        text = next(text for text in (*theirs, *mine) if mine.get(text) != theirs.get(text))
        shown = f"{text!r:.80} is token {theirs.get(text, 'none')} of the model and {mine.get(text, 'none')} here"
        raise ModelRefused(
            f"{source}: as a draft model it must have the tokenizer of the model, but {shown}: choose a smaller model "
            "of the same family"
        )


def check_config(config: ModelConfig, source: str) -> None:
    if config.attention_layers and config.num_heads % config.num_kv_heads:
        raise ModelRefused(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key-value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelRefused(f"{source}: the head size must be even for rotary positions, got {config.head_dim}")
    for layer, window in enumerate(config.windows):
        if window is not None and window < 1:
            raise ModelRefused(f"{source}: the window of layer {layer} must be at least 1, got {window}")


def check_model_context(config: ModelConfig, context: int | None) -> None:
    """Check the context that a specialist configures."""
    if context is not None and context > config.context:
        limit = f"exceeds the model's {config.context:,}: lower it"
        raise ModelRefused(f"the configured context of {context:,} tokens {limit}")


def check_shapes(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    unclaimed = set(shapes)
    for name, shape in expected_shapes(config):
        found = shapes.get(name)
        if found is None:
            raise ModelRefused(f"{source}: {name} is missing: the download or conversion is incomplete; repeat it")
        if found != shape:
            raise ModelRefused(
                f"{source}: {name} has shape {list(found)}, but the config says {list(shape)}: "
                "config and weights belong to different models; fetch both again"
            )
        unclaimed.discard(name)
    if unclaimed:
        raise ModelRefused(
            f"{source}: unexpected tensors: {', '.join(sorted(unclaimed)[:5])}"
            f"{' ...' if len(unclaimed) > 5 else ''} ({len(unclaimed)} in all): "
            "config and weights belong to different models"
        )


def check_finite(weights: Mapping[str, Callable[[], Iterable[Tensor]]], source: str, progress: Progress) -> None:
    """Check that all weights are finite. Each function in `weights` returns the tensors to check for one weight."""
    for done, (name, parts) in enumerate(weights.items(), start=1):
        slices = (part for tensor in parts() for part in torch.split(tensor.flatten(), SCANNED_AT_ONCE))
        if not all(_is_finite(part) for part in slices):
            raise ModelRefused(f"{source}: {name} contains NaN or infinity: the file is damaged; fetch it again")
        progress("checking weights", done, len(weights))


def _is_finite(part: Tensor) -> bool:
    """Both extremes are NaN if any element is. This is many times as fast as a test of each element."""
    return part.numel() == 0 or bool(torch.isfinite(torch.stack(torch.aminmax(part))).all())


def check_vocabulary_ids(ids: Iterable[int], vocab_size: int, source: str) -> None:
    highest = max(ids, default=-1)
    if highest >= vocab_size:
        raise ModelRefused(
            f"{source}: the tokenizer has id {highest}, but the model has only {vocab_size} vocabulary rows: "
            "tokenizer and weights belong to different models"
        )


CHUNK = 1 << 20


def compute_revision(files: Mapping[str, Path], progress: Progress) -> str:
    """Return the model's identity: sha256 over the key and the content of each file, ordered by key."""
    total = sum(path.stat().st_size for path in files.values())
    lock, done = Lock(), 0

    def digest(path: Path) -> bytes:
        nonlocal done
        hasher = sha256()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                hasher.update(chunk)
                with lock:
                    done += len(chunk)
                    progress("computing the model's revision", done, total)
        return hasher.digest()

    parts = sorted(files.items())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # several files at once
        digests = list(threads.map(digest, (path for _, path in parts)))
    named = zip(parts, digests, strict=True)
    return digest_parts([each for (part, _), found in named for each in (part.encode(), found)]).hex()
