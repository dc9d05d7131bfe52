"""The shape of a model, whatever file it came from."""

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0
    """What the model was trained with before scaling (llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """yarn: scales cos and sin; None to derive it from factor, mscale and mscale_all_dim."""
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
    context: int
    """Tokens the model can attend over: prompt and answer together."""
    tied_head: bool
    """The embedding is also the output head."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """A norm over each head of q and k before rope (Qwen3)."""
    windows: tuple[int | None, ...] = ()
    """For each layer, how many positions it looks back over, itself included; None or an empty tuple for all."""

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
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads
