"""The words of a model out of a GGUF file's metadata."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from specialist.models.checkpoint import Vocabulary
from specialist.models.errors import ModelRefused
from specialist.models.fields import Fields
from specialist.models.gguf.split import SPLITS

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>")
"""Control tokens that end an answer though the file names only one of them."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
MAX_PIECE = 512
"""Characters of a SentencePiece token that is taken apart into merges."""


class Type(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


TYPES: dict[object, Type] = {kind.value: kind for kind in Type}


@dataclass(frozen=True, slots=True)
class Words:
    texts: list[str]
    types: list[Type]

    def ids(self, *types: Type) -> dict[str, int]:
        return {text: i for i, (text, kind) in enumerate(zip(self.texts, self.types, strict=True)) if kind in types}


def read_vocabulary(fields: Fields) -> tuple[Vocabulary, int]:
    """The vocabulary, and how many tokens it has."""
    words = _words(fields)
    model = fields.text("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer, adds_bos = _byte_level(fields, words), fields.text("tokenizer.ggml.pre", "") == "llama-bpe"
    elif model == "llama":
        tokenizer, adds_bos = _sentencepiece(fields, words), True
    else:
        raise fields.wrong("tokenizer.ggml.model", f"must be gpt2 or llama, got {model!r:.80}")
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in words.ids(Type.USER_DEFINED)])
    control_ids = words.ids(Type.CONTROL, Type.UNKNOWN)
    adds_bos = fields.flag("tokenizer.ggml.add_bos_token", adds_bos)
    num_tokens = len(words.texts)
    return (
        Vocabulary(
            tokenizer=tokenizer,
            control_ids=control_ids,
            bos_id=fields.integer("tokenizer.ggml.bos_token_id", low=0, high=num_tokens - 1) if adds_bos else None,
            eos_ids=_eos_ids(fields, control_ids, num_tokens),
            chat_template=fields.maybe_text("tokenizer.chat_template"),
            bos_token=_named_token(fields, "bos", control_ids),
            eos_token=_named_token(fields, "eos", control_ids),
        ),
        num_tokens,
    )


def _named_token(fields: Fields, name: str, control_ids: dict[str, int]) -> str | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = fields.integer(key, low=0) if fields.has(key) else None
    return next((text for text, control_id in control_ids.items() if control_id == token_id), None)


def _words(fields: Fields) -> Words:
    texts = fields.texts("tokenizer.ggml.tokens")
    numbers = fields.listed("tokenizer.ggml.token_type")
    if not texts or len(numbers) != len(texts):
        raise fields.wrong("tokenizer.ggml.token_type", f"has {len(numbers)} entries for {len(texts)} tokens")
    if len(set(texts)) != len(texts):
        raise fields.wrong("tokenizer.ggml.tokens", "names a token twice")
    types = [TYPES[number] for number in numbers if number in TYPES]
    if len(types) != len(texts):
        raise fields.wrong("tokenizer.ggml.token_type", f"must hold numbers from 1 to {len(TYPES)}")
    return Words(texts, types)


def _eos_ids(fields: Fields, control_ids: dict[str, int], num_tokens: int) -> frozenset[int]:
    named = [
        fields.integer(f"tokenizer.ggml.{name}_token_id", low=0, high=num_tokens - 1)
        for name in ("eos", "eot", "eom")
        if fields.has(f"tokenizer.ggml.{name}_token_id")
    ]
    return frozenset([*named, *(control_ids[text] for text in END_OF_TURN if text in control_ids)])


def _byte_level(fields: Fields, words: Words) -> Tokenizer:
    pre = fields.text("tokenizer.ggml.pre")
    if pre not in SPLITS:
        raise fields.wrong("tokenizer.ggml.pre", f"must be one of {', '.join(SPLITS)}, got {pre!r:.80}")
    vocab = words.ids(Type.NORMAL, Type.USER_DEFINED)
    pairs = [tuple(line.split(" ")) for line in fields.texts("tokenizer.ggml.merges")]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    if len(merges) != len(pairs):
        raise fields.wrong("tokenizer.ggml.merges", "must hold two words a line")
    tokenizer = _bpe(fields, BPE, vocab, merges, ignore_merges=pre == "llama-bpe")
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = SPLITS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(
    fields: Fields, model: type[BPE], vocab: dict[str, int], merges: Sequence[tuple[str, str]], **settings: bool
) -> Tokenizer:
    try:
        return Tokenizer(model(vocab, list(merges), **settings))
    except Exception as error:
        raise ModelRefused(f"{fields.source}: the tokenizer is damaged: {error}; fetch the file again") from None


def _sentencepiece(fields: Fields, words: Words) -> Tokenizer:
    scores = fields.listed("tokenizer.ggml.scores")
    if len(scores) != len(words.texts):
        raise fields.wrong("tokenizer.ggml.scores", f"has {len(scores)} entries for {len(words.texts)} tokens")
    bytes_ = words.ids(Type.BYTE)
    if set(bytes_) != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise fields.wrong("tokenizer.ggml.tokens", "must have a token for each of the 256 bytes")
    pieces = words.ids(Type.NORMAL, Type.USER_DEFINED)
    merges = _merges(fields, words.ids(Type.NORMAL), scores)
    tokenizer = _bpe(fields, BPE, {**pieces, **bytes_}, merges, byte_fallback=True, fuse_unk=True)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    undo: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.flag("tokenizer.ggml.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(undo)
    return tokenizer


def _merges(fields: Fields, pieces: dict[str, int], scores: list[object]) -> list[tuple[str, str]]:
    """SentencePiece merges whichever neighbours make the piece of the highest score."""
    if max(map(len, pieces), default=0) > MAX_PIECE:
        raise fields.wrong("tokenizer.ggml.tokens", f"has a token of more than {MAX_PIECE} characters")
    ranked: list[tuple[float, int, str, str]] = []
    for piece, i in pieces.items():
        score = scores[i]
        if not isinstance(score, float):
            raise fields.wrong("tokenizer.ggml.scores", "must hold numbers")
        splits = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        ranked += ((-score, i, left, right) for left, right in splits if left in pieces and right in pieces)
    return [(left, right) for _, _, left, right in sorted(ranked)]
