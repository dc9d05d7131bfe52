"""The vocabulary in a GGUF file's metadata."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from specialist.models.checkpoint import Vocabulary
from specialist.models.fields import ModelFields, ModelRefused

# Control tokens that end an answer, although the file names only one of them.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
MAX_PIECE = 512  # maximum characters of a SentencePiece token, because it is split into merges


class TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


TYPES: dict[object, TokenType] = {kind.value: kind for kind in TokenType}


@dataclass(frozen=True, slots=True)
class GgufTokens:
    texts: list[str]
    types: list[TokenType]

    def ids(self, *types: TokenType) -> dict[str, int]:
        return {text: i for i, (text, kind) in enumerate(zip(self.texts, self.types, strict=True)) if kind in types}


def read_gguf_vocabulary(fields: ModelFields) -> tuple[Vocabulary, int]:
    tokens = _read_tokens(fields)
    model = fields.text("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level(fields, tokens), fields.text("tokenizer.ggml.pre", "") == "llama-bpe"
    elif model == "llama":
        tokenizer, adds_bos = _sentencepiece(fields, tokens), True
    else:
        raise fields.wrong("tokenizer.ggml.model", f"must be gpt2 or llama, got {model!r:.80}")
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in tokens.ids(TokenType.USER_DEFINED)])
    control_ids = tokens.ids(TokenType.CONTROL, TokenType.UNKNOWN)
    adds_bos = fields.flag("tokenizer.ggml.add_bos_token", adds_bos)
    num_tokens = len(tokens.texts)
    vocabulary = Vocabulary(
        tokenizer,
        control_ids,
        bos_id=fields.integer("tokenizer.ggml.bos_token_id", low=0, high=num_tokens - 1) if adds_bos else None,
        eos_ids=_eos_ids(fields, control_ids, num_tokens),
        chat_template=fields.optional_text("tokenizer.chat_template"),
        bos_token=_named_token(fields, "bos", control_ids),
        eos_token=_named_token(fields, "eos", control_ids),
    )
    return vocabulary, num_tokens


def _named_token(fields: ModelFields, name: str, control_ids: dict[str, int]) -> str | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = fields.integer(key, low=0) if fields.has(key) else None
    return next((text for text, control_id in control_ids.items() if control_id == token_id), None)


def _read_tokens(fields: ModelFields) -> GgufTokens:
    texts = fields.texts("tokenizer.ggml.tokens")
    numbers = fields.listed("tokenizer.ggml.token_type")
    if not texts or len(numbers) != len(texts):
        raise fields.wrong("tokenizer.ggml.token_type", f"has {len(numbers)} entries for {len(texts)} tokens")
    if len(set(texts)) != len(texts):
        raise fields.wrong("tokenizer.ggml.tokens", "contains a token twice")
    types = [TYPES[number] for number in numbers if number in TYPES]
    if len(types) != len(texts):
        raise fields.wrong("tokenizer.ggml.token_type", f"must contain numbers from 1 to {len(TYPES)}")
    return GgufTokens(texts, types)


def _eos_ids(fields: ModelFields, control_ids: dict[str, int], num_tokens: int) -> frozenset[int]:
    named = [
        fields.integer(f"tokenizer.ggml.{name}_token_id", low=0, high=num_tokens - 1)
        for name in ("eos", "eot", "eom")
        if fields.has(f"tokenizer.ggml.{name}_token_id")
    ]
    return frozenset([*named, *(control_ids[text] for text in END_OF_TURN if text in control_ids)])


def _byte_level(fields: ModelFields, tokens: GgufTokens) -> Tokenizer:
    pre = fields.text("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise fields.wrong("tokenizer.ggml.pre", f"must be one of {', '.join(PRE_TOKENIZERS)}, got {pre!r:.80}")
    vocab = tokens.ids(TokenType.NORMAL, TokenType.USER_DEFINED)
    pairs = [tuple(line.split(" ")) for line in fields.texts("tokenizer.ggml.merges")]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    if len(merges) != len(pairs):
        raise fields.wrong("tokenizer.ggml.merges", "must contain two words per line")
    tokenizer = _bpe(fields, vocab, merges, ignore_merges=pre == "llama-bpe")
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(fields: ModelFields, vocab: dict[str, int], merges: list[tuple[str, str]], **settings: bool) -> Tokenizer:
    try:
        return Tokenizer(BPE(vocab, merges, **settings))
    except Exception as error:
        raise ModelRefused(f"{fields.source}: the tokenizer is damaged: {error}; fetch the file again") from None


def _sentencepiece(fields: ModelFields, tokens: GgufTokens) -> Tokenizer:
    scores = fields.listed("tokenizer.ggml.scores")
    if len(scores) != len(tokens.texts):
        raise fields.wrong("tokenizer.ggml.scores", f"has {len(scores)} entries for {len(tokens.texts)} tokens")
    bytes_ = tokens.ids(TokenType.BYTE)
    if set(bytes_) != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise fields.wrong("tokenizer.ggml.tokens", "must have a token for each of the 256 bytes")
    pieces = tokens.ids(TokenType.NORMAL, TokenType.USER_DEFINED)
    merges = _merges(fields, tokens.ids(TokenType.NORMAL), scores)
    tokenizer = _bpe(fields, {**pieces, **bytes_}, merges, byte_fallback=True, fuse_unk=True)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    undo: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.flag("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer


def _merges(fields: ModelFields, pieces: dict[str, int], scores: list[object]) -> list[tuple[str, str]]:
    """Derive merges: SentencePiece merges the neighbours that form the piece with the highest score."""
    if max(map(len, pieces), default=0) > MAX_PIECE:
        raise fields.wrong("tokenizer.ggml.tokens", f"has a token of more than {MAX_PIECE} characters")
    ranked: list[tuple[float, int, str, str]] = []
    for piece, i in pieces.items():
        score = scores[i]
        if not isinstance(score, float):
            raise fields.wrong("tokenizer.ggml.scores", "must contain numbers")
        splits = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        ranked += ((-score, i, left, right) for left, right in splits if left in pieces and right in pieces)
    return [(left, right) for _, _, left, right in sorted(ranked)]


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_NEWER = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|%s| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split_by(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = (pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns)
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# How each family of byte-level vocabularies splits text into words before merging.
PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": lambda: _split_by(_NEWER % r"\p{N}{1,3}"),
    "qwen2": lambda: _split_by(_NEWER % r"\p{N}"),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "default": lambda: _split_by(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
