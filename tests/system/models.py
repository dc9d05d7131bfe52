"""A tiny model with random weights, adapters for it, and the answers that transformers computes with each of them."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import ascii_letters, digits, punctuation
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from specialist.adapters.adapter import read_adapter
from specialist.models.checkpoint import ModelConfig
from tests.adapters.peft_files import SETTINGS, random_tensors, tensor_name, write
from tests.native.transformers_models import MODULES, model_config, random_model

CONTROL = ("<s>", "</s>")
CHARACTERS = (*sorted(digits + ascii_letters + punctuation), "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")
"""The last character stands for a space in a byte-level vocabulary. Every token is one character, so an answer has as
many characters as tokens were requested."""
ONLY_WORDS = "{% for message in messages %}{{ message.content }}{% endfor %}"
SCALE = SETTINGS["lora_alpha"] / SETTINGS["r"]
TARGETS = ("q", "down")
CLEAR = 1e-3
"""At every step of an expected answer, the logits of the best and the second-best token differ by more than this. Two
implementations of the same calculation differ by far less."""


@dataclass(frozen=True)
class TinyModel:
    """A tiny model that never generates a control token, so an answer ends only at its token limit."""

    model: Any

    @cached_property
    def config(self) -> ModelConfig:
        return model_config(self.model.config)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        vocabulary = {piece: number for number, piece in enumerate((*CONTROL, *CHARACTERS))}
        tokenizer = Tokenizer(models.BPE(vocabulary, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
        return tokenizer

    def save(self, directory: Path) -> Path:
        """Write the model as a Hugging Face directory. Return the directory."""
        directory.mkdir(parents=True)
        self.model.config.save_pretrained(directory)
        save_file(
            {name: each.cpu().contiguous() for name, each in self.model.state_dict().items()},
            directory / "model.safetensors",
        )
        self.tokenizer.save(str(directory / "tokenizer.json"))
        named = {"bos_token": CONTROL[0], "eos_token": CONTROL[1], "chat_template": ONLY_WORDS}
        (directory / "tokenizer_config.json").write_text(json.dumps(named))
        return directory

    def adapter(self, directory: Path, seed: int, strength: float = 0.3) -> str:
        """Write a random adapter to the directory; return its digest."""
        tensors = random_tensors(TARGETS, seed=seed, model=self.config)
        write(directory, {name: tensor * strength for name, tensor in tensors.items()})
        return read_adapter(directory, self.config).digest

    def answers(
        self, prompts: Sequence[str], length: int, tensors: Mapping[str, Tensor] | None = None
    ) -> dict[str, str]:
        """Return the greedy answer to each prompt, with the adapter's tensors merged into the weights. All prompts must
        have the same number of tokens. A prompt is left out if two tokens are nearly equally likely at any step of its
        answer."""
        model = self.model if tensors is None else _merged(self.model, tensors)
        given = torch.tensor([self.tokenizer.encode(prompt).ids for prompt in prompts], device=self.model.device)
        tokens, lead = _greedy(model, given, length)
        shown = (self.tokenizer.decode(row) for row in tokens.tolist())
        return {prompt: text for prompt, text, by in zip(prompts, shown, lead.tolist(), strict=True) if by > CLEAR}


def tiny(seed: int = 0) -> TinyModel:
    model = random_model("llama", seed=seed, vocab_size=len(CONTROL) + len(CHARACTERS), bos_token_id=0, eos_token_id=1)
    with torch.no_grad():
        model.lm_head.weight[: len(CONTROL)] = 0.0
    return TinyModel(model)


def _merged(model: Any, tensors: Mapping[str, Tensor]) -> Any:
    merged = copy.deepcopy(model)
    with torch.no_grad():
        for layer, block in enumerate(merged.model.layers):
            for target in TARGETS:
                a, b = (tensors[tensor_name(f"layers.{layer}.{target}", half)] for half in "AB")
                block.get_submodule(MODULES[target]).weight += (SCALE * b @ a).to(model.device)
    return merged


@torch.no_grad()
def _greedy(model: Any, given: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of each row, and the smallest difference between its best and second-best logits at any
    step."""
    tokens, cache = [], None
    lead = torch.full((len(given),), torch.inf, device=given.device)
    for _ in range(length):
        out = model(given, past_key_values=cache, use_cache=True)
        best = out.logits[:, -1].float().topk(2)
        lead = torch.minimum(lead, best.values[:, 0] - best.values[:, 1])
        given, cache = best.indices[:, :1], out.past_key_values
        tokens.append(given)
    return torch.cat(tokens, dim=1), lead
