"""A small tokenizer of each supported kind in two forms: as a model's files define it, and as a Vocabulary."""

import json
from functools import cache
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from specialist.models.checkpoint import Vocabulary

CONTROLS: tuple[str, ...] = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<think>", "</think>")
CONTROLS += ("<|im_start|>", "<|im_end|>", "<|im|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
TEXT = (
    "The quick brown fox jumps over the lazy dog. user assistant system\n\n  You are a helpful assistant.\n"
    "int main() { return 0; }\n<|im_start|>user hello world<|im_end|> der Bär läuft 12345 你好 <s> [INST] think\n"
) * 3
KINDS = ("byte-level", "gpt-2", "byte-fallback", "no prefix", "first only", "metaspace")


class TokenizerPair(NamedTuple):
    full: Tokenizer
    """Recognises control tokens in text, as a tokenizer loaded from tokenizer.json does."""
    vocabulary: Vocabulary


def vocabulary_of(full: Tokenizer, template: str | None = None, bos: str | None = None) -> Vocabulary:
    described: dict[str, Any] = json.loads(full.to_str())
    control_ids = {text: full.get_vocab()[text] for text in CONTROLS}
    words = described["model"]["vocab"]
    described["model"]["vocab"] = {text: token_id for text, token_id in words.items() if text not in control_ids}
    described["model"]["merges"] = [pair for pair in described["model"]["merges"] if "".join(pair) not in control_ids]
    described["model"]["unk_token"] = None
    described["added_tokens"] = [one for one in described["added_tokens"] if one["content"] not in control_ids]
    bos_id = None if bos is None else control_ids[bos]
    eos_ids = frozenset({control_ids["</s>"]})
    return Vocabulary(Tokenizer.from_str(json.dumps(described)), control_ids, bos_id, eos_ids, template)


@cache
def words(kind: str, template: str | None = None, bos: str | None = None) -> TokenizerPair:
    full = _full(kind)
    return TokenizerPair(full, vocabulary_of(full, template, bos))


@cache
def _full(kind: str) -> Tokenizer:
    match kind:
        case "byte-level":
            split = pre_tokenizers.Split(r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+", "isolated")
            return _byte_level(pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)]))
        case "gpt-2":
            return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
        case "byte-fallback":
            full = _sentencepiece()
            full.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            full.decoder = _undo(decoders.Strip(" ", 1, 0))
        case "no prefix":
            full = _sentencepiece()
            full.normalizer = normalizers.Replace(" ", "▁")
            full.decoder = _undo()
        case "first only":
            full = _sentencepiece()
            full.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
            full.decoder = _undo(decoders.Strip(" ", 1, 0))
        case _:
            full = _sentencepiece()
            full.pre_tokenizer = pre_tokenizers.Metaspace()
            full.decoder = decoders.Metaspace()
    return full


def _undo(*last: decoders.Decoder) -> decoders.Decoder:
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])


def _byte_level(split: pre_tokenizers.PreTokenizer) -> Tokenizer:
    full = Tokenizer(BPE())
    full.pre_tokenizer = split
    full.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=420, special_tokens=list(CONTROLS), initial_alphabet=alphabet, show_progress=False)
    full.train_from_iterator([TEXT], trainer)
    full.add_tokens([AddedToken("<tool call>", normalized=False), AddedToken("né>", normalized=False)])
    return full


def _sentencepiece() -> Tokenizer:
    """Return a BPE tokenizer whose merges can form the control token `<s>`, as in converted SentencePiece files."""
    letters = sorted({*TEXT.replace(" ", "▁").replace("你好", "")})
    tokens = [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, "▁t", "▁th", "▁the", "▁▁", "er", "<s"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "▁"), ("e", "r"), ("<", "s"), ("<s", ">")]
    vocab = {token: index for index, token in enumerate(tokens)}
    full = Tokenizer(BPE(vocab, merges, byte_fallback=True, fuse_unk=True))
    full.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROLS])
    return full
