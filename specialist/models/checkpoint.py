"""A model read from disk: nothing computed yet, everything checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from specialist.models.config import ModelConfig

if TYPE_CHECKING:  # who only wants the words does not load torch
    from specialist.models.weight import Weight

LAYER_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    tokenizer: Tokenizer
    """Adds no special tokens by itself and parses none out of text: control tokens are put in by id."""
    control_ids: Mapping[str, int]
    """The text of every control token, and its id."""
    bos_id: int | None
    """Put before a bare prompt; None where the model was trained without."""
    eos_ids: frozenset[int]
    chat_template: str | None
    """Jinja source, untrusted."""
    bos_token: str | None = None
    """What a template means by that name, where the files say; one of the control tokens."""
    eos_token: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    config: ModelConfig
    vocabulary: Vocabulary
    revision: str
    """sha256 of the content, hex."""
    weights: "Mapping[str, Weight]"
    """Memory-mapped, read when asked for. Shapes are [out, in]; rows of q and k stand as in Hugging Face's layout,
    where rope turns the first half of a head against the second.

    embed, norm, head (absent when tied), and for each layer i, below `layers.i.`:
    attn_norm, q, k, v, o, mlp_norm, gate, up, down; q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias
    where the config says so; q_norm, k_norm likewise.
    """


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight such a model has, and its shape."""
    hidden, inner = config.hidden_size, config.intermediate_size
    yield "embed", (config.vocab_size, hidden)
    yield "norm", (hidden,)
    if not config.tied_head:
        yield "head", (config.vocab_size, hidden)
    matrices = {
        "q": (config.q_size, hidden),
        "k": (config.kv_size, hidden),
        "v": (config.kv_size, hidden),
        "o": (hidden, config.q_size),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    biased = {
        **dict.fromkeys(("q", "k", "v"), config.qkv_bias),
        "o": config.output_bias,
        **dict.fromkeys(("gate", "up", "down"), config.mlp_bias),
    }
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        yield f"{prefix}attn_norm", (hidden,)
        yield f"{prefix}mlp_norm", (hidden,)
        for name, shape in matrices.items():
            yield prefix + name, shape
            if biased[name]:
                yield f"{prefix}{name}_bias", shape[:1]
        if config.qk_norm:
            yield f"{prefix}q_norm", (config.head_dim,)
            yield f"{prefix}k_norm", (config.head_dim,)
