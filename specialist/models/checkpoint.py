"""A model read from disk: configuration, vocabulary and weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from specialist.models.weights import Weight

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0  # the context in training, before scaling (llama3, yarn)
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """For yarn: scales cos and sin; None to derive it from factor, mscale and mscale_all_dim."""
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    context: int  # maximum number of tokens, prompt and answer together
    tied_head: bool  # whether the embedding is also the output head
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # whether each head of q and k is normalised before rope (Qwen3)
    # for each layer, the number of positions it attends to, its own included; None or an empty tuple for all
    windows: tuple[int | None, ...] = ()

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


LAYER_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    tokenizer: Tokenizer  # neither adds control tokens nor recognises them in text: they are inserted by id
    control_ids: Mapping[str, int]  # the text of every control token, and its id
    bos_id: int | None  # precedes a plain prompt; None if the model was trained without it
    eos_ids: frozenset[int]
    chat_template: str | None  # Jinja source, untrusted
    bos_token: str | None = None  # the control token that a template refers to by this name, if the files define it
    eos_token: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    config: ModelConfig
    vocabulary: Vocabulary
    revision: str  # sha256 of the content, hex
    weights: "Mapping[str, Weight]"
    """Memory-mapped, read on access. Shapes are [out, in]; rows of q and k are in Hugging Face's layout, where rope
    rotates the first half of a head against the second.

    The keys are embed, norm, head (absent when tied) and, for each layer i, prefixed with `layers.i.`:
    attn_norm, q, k, v, o, mlp_norm, gate, up, down; q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias
    if the config says so; q_norm, k_norm likewise.
    """


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    yield "embed", (config.vocab_size, hidden)
    yield "norm", (hidden,)
    if not config.tied_head:
        yield "head", (config.vocab_size, hidden)
    matrices = {
        "q": ((config.q_size, hidden), config.qkv_bias),
        "k": ((config.kv_size, hidden), config.qkv_bias),
        "v": ((config.kv_size, hidden), config.qkv_bias),
        "o": ((hidden, config.q_size), config.output_bias),
        "gate": ((inner, hidden), config.mlp_bias),
        "up": ((inner, hidden), config.mlp_bias),
        "down": ((hidden, inner), config.mlp_bias),
    }
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        yield f"{prefix}attn_norm", (hidden,)
        yield f"{prefix}mlp_norm", (hidden,)
        for name, (shape, is_biased) in matrices.items():
            yield prefix + name, shape
            if is_biased:
                yield f"{prefix}{name}_bias", shape[:1]
        if config.qk_norm:
            yield f"{prefix}q_norm", (config.head_dim,)
            yield f"{prefix}k_norm", (config.head_dim,)
