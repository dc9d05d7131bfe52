"""A tiny random model with a tool template. Its free output is noise; only constrained output makes sense."""

import json
from pathlib import Path

from tokenizers import AddedToken

from tests.models.tiny import tiny_model, tiny_tokenizer
from tests.specialist.tools.templates import QWEN

MARKERS = ("<tool_call>", "</tool_call>")


def tool_model(directory: Path, *, special: bool = False, context: int = 4096) -> Path:
    """Write the model and return its directory. Each tool marker is a single token: an ordinary token, or with
    `special` a control token, which is decoded to no text."""
    tiny_model(directory, "llama", max_position_embeddings=context)
    tokenizer = tiny_tokenizer()
    added = [AddedToken(marker, special=special, normalized=False) for marker in MARKERS]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "chat_template": QWEN}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
