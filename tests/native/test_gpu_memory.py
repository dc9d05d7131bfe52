"""A KV pool on a GPU takes all that the replica's share leaves, and never more than there is."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from specialist.engines.native.gpu_memory import (
    LEAST_BLOCKS,
    MARGIN,
    MOST_BLOCKS,
    CardMemory,
    allocate,
    bytes_of_pages,
    largest_batch,
    padded_kv,
    plan_blocks,
    plan_pages,
    weight_bytes,
    why_unsupported,
)
from specialist.models.checkpoint import ModelConfig, StateSpace, expected_shapes
from specialist.ops.gpu.packing import Matrix, Packed, Quantised, join
from tests.native.transformers_models import checkpoint_of, random_model
from tests.ops.quantize import quantize

GIB = 1 << 30
sizes = st.integers(0, 200 * GIB)
shares = st.floats(0.01, 1.0)


@st.composite
def cards(draw: Callable[[Any], Any]) -> CardMemory:
    total = draw(st.integers(1 * GIB, 200 * GIB))
    own = draw(st.integers(0, total))
    return CardMemory(
        total, draw(st.integers(0, total - own)), own, draw(st.integers(0, GIB)), draw(st.integers(0, GIB))
    )


@given(cards(), shares, st.integers(1 << 10, 1 << 26), st.integers(0, 128))
@example(CardMemory(141 * GIB, 138 * GIB, 2 * GIB, GIB, GIB), 0.9, 1 << 21, 128)
def test_a_pool_takes_exactly_what_its_share_and_its_neighbours_leave(
    card: CardMemory, share: float, block_bytes: int, num_spare: int
) -> None:
    def fits(blocks: int) -> bool:
        pool = (blocks + num_spare) * block_bytes
        within_share = card.own + pool + card.peak + card.adapters + MARGIN <= int(share * card.total)
        return within_share and pool + card.peak + card.adapters + MARGIN <= card.free

    try:
        blocks = plan_blocks(card, share, block_bytes, num_spare)
    except MemoryError as refused:
        assert not fits(LEAST_BLOCKS)
        assert "raise memory_fraction" in str(refused)
    else:
        assert blocks >= LEAST_BLOCKS
        assert fits(blocks)
        assert blocks == MOST_BLOCKS or not fits(blocks + 1)


class Card:
    """A card of so many bytes, which refuses what it does not have."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.held = 0

    def resize(self, num_blocks: int) -> None:
        self.held = 0
        if num_blocks > self.free:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.held = num_blocks


@given(st.integers(LEAST_BLOCKS, 1 << 22), st.integers(0, 1 << 22))
def test_a_refused_allocation_becomes_a_smaller_pool_or_a_refusal(wanted: int, free: int) -> None:
    card = Card(free)
    if free < LEAST_BLOCKS:
        with pytest.raises(MemoryError, match="no memory for a KV pool"):
            allocate(card.resize, wanted)
        return
    blocks = allocate(card.resize, wanted)
    assert blocks == card.held <= free
    assert blocks == wanted if wanted <= free else blocks >= min(free, max(LEAST_BLOCKS, free * 7 // 8 - 1))


@given(st.lists(st.floats(0.05, 0.5), min_size=1, max_size=8), st.integers(0, 1 << 30), st.integers(24, 192))
def test_replicas_whose_shares_sum_to_one_fit_together_in_any_order(parts: list[float], seed: int, gib: int) -> None:
    rng, total, used = Random(seed), gib * GIB, 0
    whole = max(1.0, sum(parts))
    for part in rng.sample(parts, len(parts)):
        own, peak = rng.randrange(GIB), rng.randrange(GIB)
        context = rng.randrange(MARGIN // 2)  # what the driver takes beside the allocator
        card = CardMemory(total, total - used - own - context, own, peak, 0)
        try:
            blocks = plan_blocks(card, part / whole, 1 << 20)
        except MemoryError:
            assert part / whole * total < own + peak + MARGIN + LEAST_BLOCKS * (1 << 20) + 1
            continue
        used += own + context + blocks * (1 << 20) + peak
        assert used <= total


@given(st.integers(GIB, 200 * GIB), shares, st.integers(1 << 10, 1 << 28))
def test_adapters_keep_to_their_part_of_the_share(total: int, share: float, page_bytes: int) -> None:
    pages = plan_pages(total, share, page_bytes, 128)
    part = share * total / 16
    assert pages == 1 or bytes_of_pages(pages, page_bytes) <= part
    assert pages == 128 or bytes_of_pages(2 * pages, page_bytes) > part


@given(st.integers(1, 9000), st.integers(1, 200), st.integers(8, 5000), st.integers(1, 64))
def test_the_measured_step_is_a_largest_one(max_tokens: int, max_rows: int, context: int, block_size: int) -> None:
    assume(max_rows <= max_tokens)
    decoder: Any = SimpleNamespace(config=SimpleNamespace(context=context), block_size=block_size)
    batch = largest_batch(decoder, max_tokens, max_rows)
    assert len(batch.tokens) == len(batch.positions) == len(batch.slots) == min(max_tokens, max_rows * context)
    assert len(batch.outputs) == len(batch.context_lens) == max_rows
    assert batch.query_start.diff().equal(batch.context_lens)
    assert (batch.outputs + 1).equal(batch.query_start[1:])
    assert int(batch.positions.max()) + 1 == int(batch.context_lens.max()) <= context
    assert batch.block_tables.shape[1] * block_size >= int(batch.context_lens.max())


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_as_they_lie_on_the_card(tied: bool) -> None:
    config: ModelConfig = checkpoint_of(random_model("llama", tie_word_embeddings=tied)).config
    shapes = dict(expected_shapes(config))
    matrices = sum(shape[0] * shape[1] for shape in shapes.values() if len(shape) == 2)
    assert config.tied_head == tied
    assert weight_bytes(config, 2, {}) == 2 * matrices
    names = [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] % 32 == 0]
    assert weight_bytes(config, 4, dict.fromkeys(names, 4)) == 4 * matrices, "float32 keeps no quantised weights"


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_quantised_weights_are_counted_as_they_are_joined(data: st.DataObject) -> None:
    config = checkpoint_of(
        random_model("llama", hidden_size=96, intermediate_size=160, head_dim=16, num_hidden_layers=1)
    ).config
    shapes = {name: shape for name, shape in expected_shapes(config) if len(shape) == 2}
    bits = {name: data.draw(st.sampled_from((0, 4, 8))) for name in shapes}
    generator = torch.Generator().manual_seed(0)
    kept: dict[str, Matrix] = {}
    for name, shape in shapes.items():
        floats = torch.randn(shape, generator=generator)
        weight = quantize(floats, 4 if bits[name] == 4 else 8) if bits[name] else floats
        kept[name] = Packed(weight, torch.device("cpu"), torch.bfloat16).weight
    for layer in range(config.num_layers):
        for group in (("q", "k", "v"), ("gate", "up")):
            parts = [kept.pop(f"layers.{layer}.{name}") for name in group]
            kept[f"{layer} {group}"] = join(parts)
    tensors = [part for each in kept.values() for part in (each[:2] if isinstance(each, Quantised) else (each,))]
    counted = weight_bytes(config, 2, {name: each for name, each in bits.items() if each})
    assert counted == sum(tensor.nbytes for tensor in tensors)


def hybrid(**changes: Any) -> ModelConfig:
    mamba = StateSpace(num_heads=4, head_dim=16, state_size=16, num_groups=1, width=4)
    parts: Any = (("ssm", "mlp"), ("attention", "mlp"))
    plain = checkpoint_of(random_model("llama")).config
    return replace(plain, **{"num_layers": 2, "parts": parts, "ssm": mamba, "head_dim": 160, **changes})


def test_models_whose_kernels_are_missing_are_refused() -> None:
    assert why_unsupported(hybrid(), torch.bfloat16) is None
    assert "without recurrent layers" in str(why_unsupported(hybrid(ssm=None), torch.bfloat16))
    assert "with norms" in str(why_unsupported(hybrid(qk_norm=True), torch.bfloat16))
    assert "too little memory" in str(why_unsupported(hybrid(head_dim=130), torch.float32))
    assert "heads of 512" in str(why_unsupported(hybrid(head_dim=300), torch.bfloat16))
    assert why_unsupported(hybrid(parts=(("ssm",), ("ssm",)), head_dim=0, num_heads=0), torch.float32) is None


def test_heads_of_models_with_recurrent_layers_take_the_memory_of_padded_ones() -> None:
    config = hybrid()
    assert padded_kv(config) == config.kv_token_size // 160 * 256
    assert padded_kv(replace(config, head_dim=128)) == replace(config, head_dim=128).kv_token_size
    assert padded_kv(replace(config, head_dim=20)) == 2 * 32 * config.num_kv_heads
    assert padded_kv(replace(config, parts=(("ssm",), ("ssm",)), head_dim=0)) == 0
