"""A large and a small model with random weights that mostly agree on the next token, to measure drafts with.

In both, the token t + 1 follows the token t: the output head is the embedding, shifted by one token, and the layers add
so little to it that they change no choice. They take as long as any others. The small model never says some tokens:
their rows of its head are zero. Each part of the vocabulary lacks another share of its tokens, and a text stays in the
part in which it begins, so its first token decides how often the small model is right.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from math import log
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from bench.random_models import letters_tokenizer
from specialist.models.checkpoint import Checkpoint, ModelConfig, Vocabulary, expected_shapes
from specialist.models.fields import ModelFields
from specialist.models.huggingface import read_huggingface_config
from specialist.models.weights import LazyWeights

_SPREAD = 0.02  # of random matrices
_FAINT = 1e-3  # what the layers add is multiplied by this
_SURE = 0.9  # the likelihood of the next token at temperature 1


class AgreeingModels(NamedTuple):
    large: Checkpoint
    small: Checkpoint


def agreeing_models(
    large: Mapping[str, Any], small: Mapping[str, Any], shares: Sequence[float], device: str
) -> AgreeingModels:
    """Create models of these configurations in bfloat16, with the vocabulary of the first. In part i of the vocabulary,
    the small one is right for the share `shares[i]` of tokens. The device makes the weights whenever they are read."""
    alike = {"vocab_size": large["vocab_size"], "tie_word_embeddings": False}
    configs = [read_huggingface_config(ModelFields("config.json", {**each, **alike})) for each in (large, small)]
    unsaid = [torch.zeros(0, dtype=torch.int64), unsaid_tokens(large["vocab_size"], shares)]
    return AgreeingModels(*(_checkpoint(*each, device) for each in zip(configs, unsaid, strict=True)))


def part_of_vocabulary(vocab: int, parts: int, part: int) -> range:
    """Return the tokens of a part."""
    return range(vocab * part // parts, vocab * (part + 1) // parts)


def unsaid_tokens(vocab: int, shares: Sequence[float]) -> Tensor:
    drawn = torch.rand(vocab, generator=torch.Generator().manual_seed(1))
    found = [
        part.start + (drawn[part.start : part.stop] >= share).nonzero().flatten()
        for index, share in enumerate(shares)
        for part in [part_of_vocabulary(vocab, len(shares), index)]
    ]
    return torch.cat(found)


def _checkpoint(config: ModelConfig, unsaid: Tensor, device: str) -> Checkpoint:
    readers: dict[str, Callable[[], Tensor]] = {
        name: partial(_random, name, shape, device) for name, shape in expected_shapes(config)
    }
    shape = config.vocab_size, config.hidden_size
    readers["embed"] = partial(_embedding, shape, device)
    readers["head"] = partial(_head, shape, unsaid, device)
    vocabulary = Vocabulary(
        letters_tokenizer(config.vocab_size), {}, bos_id=None, eos_ids=frozenset(), chat_template=None
    )
    revision = sha256(f"{config} {unsaid.tolist()}".encode()).hexdigest()
    return Checkpoint(config, vocabulary, revision, LazyWeights(readers))


def _random(name: str, shape: tuple[int, ...], device: str) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16, device=device)
    adds = name.rpartition(".")[2] in ("o", "down")
    return _normal(name, shape, device) * (_SPREAD * _FAINT if adds else _SPREAD)


def _normal(name: str, shape: tuple[int, ...], device: str) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(crc32(name.encode()))
    return torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator)


def _embedding(shape: tuple[int, int], device: str) -> Tensor:
    return _normal("embed", shape, device)


def _head(shape: tuple[int, int], unsaid: Tensor, device: str) -> Tensor:
    """The next token's logit stands out so far that its likelihood is _SURE at temperature 1."""
    vocab, hidden = shape
    logit = log(vocab * _SURE / (1 - _SURE))
    head = _embedding(shape, device).roll(1, 0) * (logit / hidden)
    head[unsaid.to(device)] = 0
    return head
