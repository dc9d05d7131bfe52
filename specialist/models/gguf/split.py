"""How each family of byte-level vocabularies cuts text into words before it merges."""

from collections.abc import Callable

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
GPT2 = rf"{CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
NEWER = rf"(?i:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _isolated(*patterns: str) -> PreTokenizer:
    cuts: list[PreTokenizer] = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


def _smollm() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _llama3() -> PreTokenizer:
    return _isolated(NEWER % r"\p{N}{1,3}")


def _qwen2() -> PreTokenizer:
    return _isolated(NEWER % r"\p{N}")


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False)


def _default() -> PreTokenizer:
    return _isolated(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


SPLITS: dict[str, Callable[[], PreTokenizer]] = {
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "qwen2": _qwen2,
    "gpt-2": _gpt2,
    "default": _default,
}
