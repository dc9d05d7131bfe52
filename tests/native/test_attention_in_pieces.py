"""Attention gives the same bits however a prompt is split into chunks, for several numbers of heads, block sizes,
windows and float types."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from specialist.engines.native.engine import StepBatch
from specialist.engines.native.fused_decoder import FusedDecoder
from tests.native.fused import fused_decoder
from tests.native.transformers_models import checkpoint_of, random_model

TOKENS = 210
HEAD_DIM = 84
"""A head does not divide into whole vectors. The kernel must process four vectors together, then one vector, then four
single numbers."""
CASES = {
    "three heads": (3, 1, 16, None),
    "seven heads, blocks of no whole vectors": (7, 1, 24, None),
    "two groups within a window": (4, 2, 16, 70),
    "more heads than share a pass": (26, 1, 16, None),
}


def _part(prompt: Tensor, start: int, stop: int, block_size: int) -> StepBatch:
    where = torch.arange(start, stop, dtype=torch.int32)
    blocks = torch.arange(TOKENS // block_size + 1, dtype=torch.int32).flip(0)  # The blocks are not in memory order.
    return StepBatch(
        tokens=prompt[start:stop].contiguous(),
        positions=where,
        slots=blocks[where // block_size] * block_size + where % block_size,
        query_start=torch.tensor([0, stop - start], dtype=torch.int32),
        context_lens=torch.tensor([stop], dtype=torch.int32),
        block_tables=blocks[None].contiguous(),
        outputs=torch.arange(stop - start, dtype=torch.int32),
    )


def _logits(decoder: FusedDecoder, prompt: Tensor, chunk: int) -> Tensor:
    """Return the logits of every token of the prompt, which is computed in chunks of this size."""
    starts = range(0, TOKENS, chunk)
    parts = [_part(prompt, start, min(start + chunk, TOKENS), decoder.block_size) for start in starts]
    return torch.cat([decoder.forward(part, ()).clone() for part in parts])


@pytest.mark.parametrize("kv_dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_logits_are_the_same_to_the_bit_however_a_prompt_is_cut(
    name: str, kv_dtype: Literal["float32", "float16"], tmp_path: Path
) -> None:
    heads, kv_heads, block_size, window = CASES[name]
    model = random_model(
        "mistral", num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=HEAD_DIM, sliding_window=window
    )
    settings = {"num_blocks": TOKENS // block_size + 1, "block_size": block_size, "kv_dtype": kv_dtype}
    decoder = fused_decoder(checkpoint_of(model), tmp_path, **settings)
    prompt = torch.randint(0, model.config.vocab_size, (TOKENS,), dtype=torch.int32)
    singly = _logits(decoder, prompt, 1)
    assert singly.isfinite().all()
    for chunk in (2, 5, 50, TOKENS):
        assert torch.equal(_logits(decoder, prompt, chunk).view(torch.int32), singly.view(torch.int32)), chunk
