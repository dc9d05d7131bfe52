"""Tiny random models of each family, saved in the Hugging Face format."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.later import Later

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Model families, and the prefix of their class names in transformers."""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = [("h", "e"), ("i", "n"), ("Ġ", "t"), ("Ġ", "Ġ"), ("Ġt", "he"), ("e", "r"), ("o", "n"), ("t", "he")]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB_SIZE = 320
"""A few more rows than the tokenizer has tokens, as in real models."""

TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
    "initializer_range": 0.2,
}


def classes(family: str) -> tuple[Any, Any]:
    """Return the configuration class and the model class."""
    name = FAMILIES[family]
    return getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")


def tiny_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer with three control tokens (ids 0 to 2), every byte, and a few merges."""
    words = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    tokenizer = Tokenizer(BPE({word: i for i, word in enumerate(words)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in CONTROL])
    return tokenizer


def tiny_model(directory: Path, family: str, *, seed: int = 0, **overrides: Any) -> "transformers.PreTrainedModel":
    """Save a random model of this family, with a tokenizer and a chat template, into `directory`. Return the model."""
    config_class, model_class = classes(family)
    torch.manual_seed(seed)
    model: transformers.PreTrainedModel = model_class(config_class(**{**TINY, **overrides}))
    model.eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "norm.weight")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory, safe_serialization=True)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return model
