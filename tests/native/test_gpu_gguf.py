"""A decoder with quantised weights on a GPU gives the logits of one with the same weights in its own type."""

import os
from typing import Literal

import pytest
import torch
from torch import Tensor

from specialist.engines.native.engine import StepBatch
from specialist.models.checkpoint import Checkpoint
from specialist.models.weights import Weight, dense
from tests.native.device import DEVICE
from tests.native.transformers_models import checkpoint_of, random_model
from tests.ops.quantize import quantize

pytest.importorskip("triton")
if DEVICE.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or Triton's interpreter", allow_module_level=True)

from specialist.engines.native.gpu_decoder import GpuDecoder
from specialist.ops.gpu.packing import Quantised

ON_GPU = DEVICE.type == "cuda"
SHORT = torch.bfloat16 if ON_GPU else torch.float16
LENGTHS = (5, 1, 150) if ON_GPU else (5, 1)
SIZES = {"hidden_size": 576, "intermediate_size": 1536} if ON_GPU else {"hidden_size": 96, "intermediate_size": 160}


def checkpoints(tied: bool) -> tuple[Checkpoint, Checkpoint]:
    """Return a checkpoint of quantised weights, of which v has more bits, and one of the floats they stand for."""
    plain = checkpoint_of(random_model("llama", head_dim=32, num_hidden_layers=2, tie_word_embeddings=tied, **SIZES))
    stored: dict[str, Weight] = {}
    for name, weight in plain.weights.items():
        bits: Literal[4, 8] = 8 if name.endswith(("v", "down", "embed")) else 4
        floats = dense(weight).cpu()
        stored[name] = quantize(floats, bits) if floats.dim() == 2 else floats
    plainly: dict[str, Weight] = {
        name: weight if isinstance(weight, Tensor) else weight.dense().to(SHORT) for name, weight in stored.items()
    }
    return (
        Checkpoint(plain.config, plain.vocabulary, "quantised", stored),
        Checkpoint(plain.config, plain.vocabulary, "floats", plainly),
    )


def logits_of(checkpoint: Checkpoint) -> tuple[list[Tensor], GpuDecoder]:
    """Return the logits of a prompt of several rows, and of a token after each of them."""
    decoder = GpuDecoder(
        checkpoint,
        num_blocks=40,
        block_size=16,
        device=DEVICE,
        dtype=SHORT,
        buckets=(4,),
        adapter_pages=2,
        most_prompt=192,
    )
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    positions = torch.cat([torch.arange(length, dtype=torch.int32) for length in LENGTHS])
    tables = torch.arange(1, 1 + 11 * len(LENGTHS), dtype=torch.int32).view(len(LENGTHS), 11)
    rows = torch.arange(len(LENGTHS)).repeat_interleave(lengths)
    slots = tables[rows, positions // 16] * 16 + positions % 16
    tokens = (positions * 7 + rows) % 131
    prompt = StepBatch(tokens.int(), positions, slots.int(), starts, lengths, tables, starts[1:] - 1)
    found = [decoder.forward(prompt, ()).clone()]
    count = torch.arange(len(LENGTHS), dtype=torch.int32)
    slots = tables[count, lengths // 16] * 16 + lengths % 16
    one = StepBatch(count + 3, lengths, slots.int(), torch.arange(len(LENGTHS) + 1).int(), lengths + 1, tables, count)
    found.append(decoder.forward(one, ()).clone())
    return found, decoder


@pytest.mark.parametrize("tied", [True, False])
def test_quantised_weights_give_the_logits_of_the_floats_they_stand_for(tied: bool) -> None:
    quantised, floats = checkpoints(tied)
    found, decoder = logits_of(quantised)
    expected, _ = logits_of(floats)
    matrices = [matrix.weight for layer in decoder._matrices for matrix in layer]
    assert all(isinstance(each, Quantised) for each in (*matrices, decoder._table, decoder._head_matrix))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) if ON_GPU else torch.allclose(one, other, atol=0.05)
        assert float(other.std()) > 0.1
