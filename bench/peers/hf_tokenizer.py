"""A checkpoint's words as Hugging Face has them: for a peer that is asked in text."""

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from specialist.models.checkpoint import Checkpoint, Vocabulary


def write_hf_tokenizer(checkpoint: Checkpoint, parent: Path) -> Path:
    """A directory named by the model's revision, there as a whole or not at all. One that is there is kept."""
    directory = parent / f"{checkpoint.revision}.words"
    if directory.exists():
        return directory
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=parent, prefix=".draft-"))
    try:
        for name, fields in (
            ("tokenizer.json", hf_tokenizer(checkpoint.vocabulary)),
            ("tokenizer_config.json", _settings(checkpoint.vocabulary)),
        ):
            (draft / name).write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
        draft.replace(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def hf_tokenizer(vocabulary: Vocabulary) -> dict[str, Any]:
    """With the control tokens, which ours leaves out because it parses none out of text."""
    fields: dict[str, Any] = json.loads(vocabulary.tokenizer.to_str())
    fields["model"]["vocab"] |= vocabulary.control_ids
    control = [_control(text, number) for text, number in vocabulary.control_ids.items()]
    added = [*fields["added_tokens"], *control]
    fields["added_tokens"] = sorted(added, key=lambda token: int(token["id"]))
    return fields


def _control(text: str, number: int) -> dict[str, Any]:
    shape = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **shape, "special": True}


def _settings(vocabulary: Vocabulary) -> dict[str, Any]:
    named = {
        "bos_token": vocabulary.bos_token,
        "eos_token": vocabulary.eos_token,
        "chat_template": vocabulary.chat_template,
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{name: value for name, value in named.items() if value is not None},
    }
