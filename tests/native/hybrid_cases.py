"""Prompts, drafts and models that tests of hybrids on any device share."""

from collections.abc import Mapping
from random import Random
from typing import Any

from specialist.scheduling.sequence import Sequence
from tests.models.tiny import VOCAB_SIZE

PARTIAL = {"rope_type": "default", "rope_theta": 5000.0}


def tokens(count: int, seed: int) -> tuple[int, ...]:
    random = Random(seed)
    return tuple(random.randrange(3, VOCAB_SIZE) for _ in range(count))


PROMPTS = (tokens(1, 0), tokens(7, 1), tokens(40, 2) + tokens(50, 3), tokens(40, 2) + tokens(11, 4), tokens(33, 5))


class SometimesRight:
    """Proposes the next tokens of known answers; every third is wrong."""

    def __init__(self, texts: list[tuple[int, ...]], window: int) -> None:
        self.texts = texts
        self.window = window

    def wants(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> bool:
        return True

    def observe(self, num_tokens: int, seconds: float) -> None: ...

    def ended(self, seq: Sequence) -> None: ...

    def propose(self, limits: Mapping[Sequence, int], num_rows: int, most: int) -> dict[Sequence, tuple[int, ...]]:
        return {seq: self._guess(seq, min(limit, self.window)) for seq, limit in limits.items()}

    def _guess(self, seq: Sequence, limit: int) -> tuple[int, ...]:
        known = tuple(seq.chain.view())
        text = next(text for text in self.texts if text[: len(known)] == known)
        coming = enumerate(text[len(known) : len(known) + limit], len(known))
        return tuple(token if i % 3 else (token + 1) % VOCAB_SIZE for i, token in coming)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("mamba2", {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True}),
    ("mamba2", {"time_step_limit": (0.4, 0.9), "n_groups": 6, "conv_kernel": 2}),
    ("bamba", {"mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True, "mamba_conv_bias": False}),
    ("bamba", {"attn_layer_indices": [], "time_step_limit": (0.4, 0.9)}),
    ("bamba", {"attn_layer_indices": [0, 1, 2], "rope_parameters": {**PARTIAL, "partial_rotary_factor": 1.0}}),
    ("falcon_h1", {"mamba_norm_before_gate": True, "time_step_limit": (0.4, 0.9)}),
    ("falcon_h1", {"mamba_rms_norm": False, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True}),
    ("falcon_h1", {"mamba_d_ssm": 72, "mamba_d_head": "auto", "head_dim": 14, "tie_word_embeddings": True}),
    ("nemotron_h", {"use_bias": True, "mlp_bias": True, "use_conv_bias": False}),
    ("nemotron_h", {"layers_block_type": ["mlp", "linear_attention"]}),
    ("nemotron_h", {"layers_block_type": ["full_attention", "mlp"]}),
    ("granitemoehybrid", {"attention_bias": True, "mamba_proj_bias": True, "time_step_limit": (0.4, 0.9)}),
    ("granitemoehybrid", {"position_embedding_type": None, "layer_types": ["full_attention"] * 3}),
    ("zamba2", {"add_bias_linear": True, "num_mem_blocks": 1}),
    ("zamba2", {"hidden_act": "silu", "use_mem_rope": False, "use_shared_attention_adapter": False}),
    ("zamba2", {"intermediate_size": 2, "num_mem_blocks": 3}),
    ("lfm2", {"conv_bias": True, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True}),
    ("lfm2", {"block_ffn_dim_multiplier": 1.3, "conv_L_cache": 2, "head_dim": 10}),
]
