"""A model read from disk: configuration, vocabulary and weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from specialist.models.weights import Weight

Architecture = Literal[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mamba2",
    "bamba",
    "falcon_h1",
    "nemotron_h",
    "granitemoehybrid",
    "zamba2",
    "lfm2",
]
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


LayerPart = Literal["attention", "ssm", "conv", "mlp", "shared"]
Activation = Literal["silu", "gelu", "relu2"]
GateNorm = Literal["none", "gate_first", "gate_last"]


@dataclass(frozen=True, slots=True)
class StateSpace:
    """The state space layers of Mamba 2. Every head has a state of [state_size, head_dim], which each token decays and
    adds to. The input projection's outputs are the gate, what the convolution reads (x, b, c), and the step sizes."""

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int  # heads of one group share b and c
    width: int  # tokens that the convolution reads
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm: GateNorm = "gate_first"
    norm_groups: int = 1
    norm_eps: float = 1e-5
    least_step: float = 0.0
    most_step: float = inf

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def in_size(self) -> int:
        return self.inner_size + self.conv_size + self.num_heads


@dataclass(frozen=True, slots=True)
class ShortConv:
    """The gated convolutions of LFM2, over the last `width` tokens."""

    width: int
    bias: bool = False


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
    # for each layer, its parts; empty if every layer has attention and an MLP
    parts: tuple[tuple[LayerPart, ...], ...] = ()
    ssm: StateSpace | None = None
    conv: ShortConv | None = None
    activation: Activation = "silu"
    gated_mlp: bool = True
    embed_scale: float = 1.0  # multiplies the embeddings
    logit_scale: float = 1.0  # multiplies the logits
    rotary_dim: int | None = None  # leading elements of a head that rope rotates; None for all

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def parts_of(self, layer: int) -> tuple[LayerPart, ...]:
        """Return the layer's parts. `attention` and `ssm` in one layer read the same input. `shared` is a block of
        attention and an MLP that reads the hidden state beside the embeddings, and adds to the input of `ssm`."""
        return self.parts[layer] if self.parts else ("attention", "mlp")

    @property
    def is_recurrent(self) -> bool:
        return self.ssm is not None or self.conv is not None

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers that have keys and values."""
        return tuple(i for i in range(self.num_layers) if {"attention", "shared"} & {*self.parts_of(i)})

    @property
    def kv_token_size(self) -> int:
        """The number of elements of all keys and values of a token."""
        return 2 * self.kv_size * len(self.attention_layers)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def group(self) -> int:
        return self.num_heads // max(1, self.num_kv_heads)


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
    if the config says so; q_norm, k_norm likewise. A recurrent layer has mixer_norm (unless it shares attn_norm), in,
    conv [channels, width], out and their biases; a state space also step_bias, log_decay, skip and gate_norm. A shared
    block ends with the matrix link.
    """


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "embed", (config.vocab_size, config.hidden_size)
    yield "norm", (config.hidden_size,)
    if not config.tied_head:
        yield "head", (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config, config.parts_of(layer)):
            yield f"layers.{layer}.{name}", shape


def _layer_shapes(config: ModelConfig, parts: tuple[LayerPart, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    wide = 2 * hidden if "shared" in parts else hidden
    has_attention, has_mlp = ("attention" in parts or "shared" in parts), ("mlp" in parts or "shared" in parts)
    if has_attention:
        yield "attn_norm", (wide,)
    if has_mlp:
        yield "mlp_norm", (hidden,)
    if has_attention:
        yield from _matrix("q", (config.q_size, wide), is_biased=config.qkv_bias)
        yield from _matrix("k", (config.kv_size, wide), is_biased=config.qkv_bias)
        yield from _matrix("v", (config.kv_size, wide), is_biased=config.qkv_bias)
        yield from _matrix("o", (hidden, config.q_size), is_biased=config.output_bias)
    if has_mlp and config.gated_mlp:
        yield from _matrix("gate", (inner, hidden), is_biased=config.mlp_bias)
    if has_mlp:
        yield from _matrix("up", (inner, hidden), is_biased=config.mlp_bias)
        yield from _matrix("down", (hidden, inner), is_biased=config.mlp_bias)
    if has_attention and config.qk_norm:
        yield "q_norm", (config.head_dim,)
        yield "k_norm", (config.head_dim,)
    if "shared" in parts:
        yield "link", (hidden, hidden)
    if ("ssm" in parts or "conv" in parts) and "attention" not in parts:
        yield "mixer_norm", (hidden,)
    if "ssm" in parts and config.ssm is not None:
        yield from _state_space_shapes(config.ssm, hidden)
    if "conv" in parts and config.conv is not None:
        yield from _matrix("in", (3 * hidden, hidden), is_biased=config.conv.bias)
        yield from _matrix("conv", (hidden, config.conv.width), is_biased=config.conv.bias)
        yield from _matrix("out", (hidden, hidden), is_biased=config.conv.bias)


def _state_space_shapes(ssm: StateSpace, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from _matrix("in", (ssm.in_size, hidden), is_biased=ssm.in_bias)
    yield from _matrix("conv", (ssm.conv_size, ssm.width), is_biased=ssm.conv_bias)
    yield from _matrix("out", (hidden, ssm.inner_size), is_biased=ssm.out_bias)
    for name in ("step_bias", "log_decay", "skip"):
        yield name, (ssm.num_heads,)
    if ssm.norm != "none":
        yield "gate_norm", (ssm.inner_size,)


def _matrix(name: str, shape: tuple[int, int], *, is_biased: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name, shape
    if is_biased:
        yield f"{name}_bias", shape[:1]
