"""A tokenizer written for peers has the same tokens as ours."""

import json
from pathlib import Path

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from bench.peers.model_files import write_hf_tokenizer
from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope, Vocabulary

END = "<|end|>"
CONTROL = {END: 0, "<|start|>": 1}


def spoken() -> Checkpoint:
    tokenizer = Tokenizer(BPE({"a": 2, "b": 3, "ab": 4}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vocabulary = Vocabulary(tokenizer, CONTROL, None, frozenset((0,)), "{{ messages }}", None, END)
    config = ModelConfig("llama", 5, 64, 96, 2, 4, 2, 16, 1e-5, context=256, tied_head=True, rope=Rope())
    return Checkpoint(config, vocabulary, "r" * 64, {})


def test_tokens_have_the_same_ids_and_control_tokens_are_recognised(tmp_path: Path) -> None:
    checkpoint = spoken()
    directory = write_hf_tokenizer(checkpoint, tmp_path)
    written = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert written.encode("ab ba").ids == checkpoint.vocabulary.tokenizer.encode("ab ba").ids == [4, 3, 2]
    assert written.encode("<|start|>ab<|end|>").ids == [1, 4, 0]
    assert written.decode([1, 4, 0]) == "ab"
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    assert (settings["chat_template"], settings["eos_token"]) == ("{{ messages }}", "<|end|>")
    assert "bos_token" not in settings


def test_tokenizer_is_written_once(tmp_path: Path) -> None:
    directory = write_hf_tokenizer(spoken(), tmp_path)
    assert write_hf_tokenizer(spoken(), tmp_path) == directory
    assert list(tmp_path.iterdir()) == [directory]
