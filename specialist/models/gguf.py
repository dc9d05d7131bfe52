"""A GGUF file as a checkpoint: its configuration, weights and vocabulary."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from math import pi
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from specialist.models import checks
from specialist.models.checkpoint import Checkpoint, ModelConfig, Rope, Vocabulary
from specialist.models.checks import Inspection
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.gguf_reader import BITS, PLAIN, Gguf, GgufTensor, read_gguf, read_scales, read_weight
from specialist.models.progress import Progress
from specialist.models.weights import Affine, LazyWeights, Weight, dense

ARCHITECTURES = ("llama", "qwen2")


def read_gguf_config(fields: ModelFields, tensors: Collection[str], vocab_size: int) -> ModelConfig:
    """Return the configuration. `tensors` has the file's tensor names, which show whether it has biases and a head."""
    architecture = fields.text("general.architecture")
    _check_is_whole_model(fields, architecture)
    heads = fields.integer(f"{architecture}.attention.head_count")
    hidden = fields.integer(f"{architecture}.embedding_length")
    head_dim = fields.integer(f"{architecture}.attention.key_length", max(1, hidden // heads))
    for same in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(f"{architecture}.{same}", head_dim) != head_dim:
            raise fields.wrong(f"{architecture}.{same}", f"must be the size of a head ({head_dim})")
    if fields.integer(f"{architecture}.vocab_size", vocab_size) != vocab_size:
        raise fields.wrong(f"{architecture}.vocab_size", f"must be the number of tokens ({vocab_size})")
    return ModelConfig(
        architecture="llama" if architecture == "llama" else "qwen2",
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=fields.integer(f"{architecture}.feed_forward_length"),
        num_layers=fields.integer(f"{architecture}.block_count", high=checks.MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=fields.integer(f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=fields.number(f"{architecture}.attention.layer_norm_rms_epsilon", high=1.0),
        rope=_rope(fields, architecture),
        context=fields.integer(f"{architecture}.context_length", high=checks.MAX_CONTEXT),
        tied_head="output.weight" not in tensors,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
    )


def _check_is_whole_model(fields: ModelFields, architecture: str) -> None:
    if architecture not in ARCHITECTURES:
        raise ModelRefused(
            f"{fields.source}: architecture {architecture!r:.80} is not supported from a GGUF file: "
            f"use one of {', '.join(ARCHITECTURES)}, or the model's Hugging Face directory"
        )
    if fields.text("general.type", "model") != "model":
        raise fields.wrong("general.type", "must be 'model': this file is an adapter or a projector")
    if fields.integer("split.count", 1, low=0) > 1:
        raise fields.wrong("split.count", "must be 1: join the parts with `llama-gguf-split --merge` first")
    if fields.integer(f"{architecture}.expert_count", 0, low=0):
        raise fields.wrong(f"{architecture}.expert_count", "must be 0: mixtures of experts are not supported")
    if fields.has(f"{architecture}.attention.sliding_window"):
        raise fields.wrong(f"{architecture}.attention.sliding_window", "is not supported in a GGUF file")


def _rope(fields: ModelFields, architecture: str) -> Rope:
    prefix = f"{architecture}.rope"
    plain = Rope(theta=fields.number(f"{prefix}.freq_base", 10_000.0))
    kind = fields.text(f"{prefix}.scaling.type", "linear" if fields.has(f"{prefix}.scale_linear") else "none")
    factor = fields.number(f"{prefix}.scaling.factor", fields.number(f"{prefix}.scale_linear", 1.0), high=1e6)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return plain
    if kind == "linear":
        return replace(plain, kind="linear", factor=factor)
    if kind != "yarn":
        raise fields.wrong(f"{prefix}.scaling.type", f"must be none, linear or yarn, got {kind!r:.80}")
    if fields.has(f"{prefix}.scaling.yarn_log_multiplier") or fields.has(f"{prefix}.scaling.attn_factor"):
        raise fields.wrong(f"{prefix}.scaling", "changes yarn's attention factor, which is not supported")
    return replace(
        plain,
        kind="yarn",
        factor=factor,
        original_context=fields.integer(f"{prefix}.scaling.original_context_length", high=checks.MAX_CONTEXT),
        beta_fast=fields.number(f"{prefix}.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number(f"{prefix}.scaling.yarn_beta_slow", 1.0),
    )


def llama3_rope(rope: Rope, head_dim: int, factors: Tensor, source: str) -> Rope:
    """Return `rope` with Llama 3's scaling. Raises ModelRefused unless `factors`, one per frequency, match it."""
    factor = float(factors.max())
    found = replace(
        rope, kind="llama3", factor=factor, original_context=8192, low_freq_factor=1.0, high_freq_factor=4.0
    )
    same_shape = factors.shape == (head_dim // 2,) and rope.kind == "default"
    if not same_shape or not torch.allclose(_llama3_divisors(found, head_dim), factors.double(), rtol=1e-4):
        raise ModelRefused(
            f"{source}: rope_freqs.weight does not scale the rotary frequencies as Llama 3 does; "
            "other scalings are not supported: use the model's Hugging Face directory"
        )
    return found


def _llama3_divisors(rope: Rope, head_dim: int) -> Tensor:
    frequencies = rope.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    turns = rope.original_context * frequencies / (2 * pi)
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return 1 / ((1 - smooth) / rope.factor + smooth)


NAMES = checks.TensorNames(
    "Llama or Qwen2",
    top={"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"},
    layer={
        **{f"attn_{name}": name for name in "qkv"},
        **{f"ffn_{name}": name for name in ("gate", "up", "down")},
        **{"attn_norm": "attn_norm", "attn_output": "o", "ffn_norm": "mlp_norm"},
    },
    pattern=re.compile(r"blk\.(0|[1-9][0-9]{0,6})\.([a-z_]+)\.(weight|bias)"),
)
ROPE_FACTORS = "rope_freqs.weight"


def _read(name: str, stored: GgufTensor, config: ModelConfig) -> Weight:
    weight = read_weight(stored)
    part = name.rpartition(".")[2].removesuffix("_bias")
    if config.architecture != "llama" or part not in ("q", "k"):
        return weight
    rows = split_rotary_pairs(stored.shape[0], config.head_dim)
    if isinstance(weight, Affine):
        return Affine(weight.bits, weight.q[rows], weight.scale[rows], weight.minimum[rows])
    return weight[rows]


def split_rotary_pairs(rows: int, head_dim: int) -> Tensor:
    """Return the indices that reorder GGUF's rows for Octet: rotary pairs half a head apart instead of side by side."""
    return torch.arange(rows).view(-1, head_dim // 2, 2).transpose(1, 2).flatten()


def inspect_gguf(path: Path) -> Inspection:
    """Check metadata, vocabulary and tensors. No weights are checked."""
    found = Inspection()
    parts = found.attempt(lambda: _read_parts(path))
    if parts is not None:
        found.config, found.vocabulary, tensors = parts
        found.bits = {name: BITS[each.kind.name] for name, each in tensors.items() if each.kind.name in BITS}
    return found


def _read_parts(path: Path) -> tuple[ModelConfig, Vocabulary, dict[str, GgufTensor]]:
    source = path.name
    file = read_gguf(path)
    fields = ModelFields(source, file.metadata)
    vocabulary, vocab_size = read_gguf_vocabulary(fields)
    config = _with_rope_factors(read_gguf_config(fields, file.tensors, vocab_size), file, source)
    checks.check_config(config, source)
    stored_as = {name: stored for name, stored in file.tensors.items() if name != ROPE_FACTORS}
    tensors = {NAMES.rename(name, source): stored for name, stored in stored_as.items()}
    checks.check_shapes(config, {name: stored.shape for name, stored in tensors.items()}, source)
    for name, stored in tensors.items():
        if len(stored.shape) != 2 and stored.kind.name not in PLAIN:
            raise ModelRefused(f"{source}: {name} is stored as {stored.kind.name}; only matrices may be quantised")
    return config, vocabulary, tensors


def open_gguf(path: Path, progress: Progress) -> Checkpoint:
    config, vocabulary, tensors = _read_parts(path)
    checks.check_finite({name: partial(read_scales, stored) for name, stored in tensors.items()}, path.name, progress)
    weights = LazyWeights({name: partial(_read, name, stored, config) for name, stored in tensors.items()})
    return Checkpoint(config, vocabulary, checks.compute_revision({"gguf": path}, progress), weights)


def _with_rope_factors(config: ModelConfig, file: Gguf, source: str) -> ModelConfig:
    stored = file.tensors.get(ROPE_FACTORS)
    if stored is None:
        return config
    if stored.kind.name not in PLAIN:
        raise ModelRefused(f"{source}: {ROPE_FACTORS} is stored as {stored.kind.name}; it must be F32, F16 or BF16")
    return replace(config, rope=llama3_rope(config.rope, config.head_dim, dense(read_weight(stored)), source))


# Control tokens that end an answer even if the file names only one of them.
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
        raise fields.wrong("tokenizer.ggml.pre", f"must be {' or '.join(PRE_TOKENIZERS)}, got {pre!r:.80}")
    vocab = tokens.ids(TokenType.NORMAL, TokenType.USER_DEFINED)
    pairs = [tuple(line.split(" ")) for line in fields.texts("tokenizer.ggml.merges")]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    if len(merges) != len(pairs):
        raise fields.wrong("tokenizer.ggml.merges", "must contain two words per entry")
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
    """Derive the merges, best first: SentencePiece merges the neighbours that form the piece with the highest score."""
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
